//! The little of the MariaDB and MySQL protocol that a probe needs: log in by the socket's peer, run one query.
//!
//! Owns: these packets. Never: sends a password.
//! Invariant: after `serves` returned `Ok`, the connection is ready for the next query.

use super::read_vec;
use std::io::{self, Read, Write};

/// CLIENT_PROTOCOL_41, CLIENT_SECURE_CONNECTION, CLIENT_PLUGIN_AUTH.
const CAPABILITIES: u32 = 0x0000_0200 | 0x0000_8000 | 0x0008_0000;
const OK: u8 = 0x00;
const ERROR: u8 = 0xff;
const EOF: u8 = 0xfe;
const QUERY: &[u8] = b"\x03SELECT 1";

/// Logs in as `user`; the server must know it by the peer of the socket (plugin `unix_socket`).
pub fn log_in(stream: &mut (impl Read + Write), user: &str) -> io::Result<()> {
    let (greeting_number, greeting) = read_packet(stream)?;
    // 10 is the version of the protocol; an error comes in its place while the server starts or is full.
    if greeting.first() != Some(&10) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let mut answer = CAPABILITIES.to_le_bytes().to_vec();
    answer.extend(0x0100_0000u32.to_le_bytes());
    // utf8mb4, then 23 reserved bytes.
    answer.push(45);
    answer.extend([0; 23]);
    answer.extend(user.as_bytes());
    answer.extend([0, 0]);
    answer.extend(b"unix_socket\0");
    write_packet(stream, greeting_number.wrapping_add(1), &answer)?;
    loop {
        let (number, packet) = read_packet(stream)?;
        match packet.first() {
            Some(&OK) => return Ok(()),
            // The server tries another plugin: an empty answer is what `unix_socket` expects, and all a probe has.
            Some(&EOF) => write_packet(stream, number.wrapping_add(1), &[])?,
            _ => return Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// True when the server ran the query.
pub fn serves(stream: &mut (impl Read + Write)) -> io::Result<bool> {
    write_packet(stream, 0, QUERY)?;
    // Column count, one column, EOF, one row, EOF; or an error alone.
    let mut ends = 0;
    let mut rows = 0;
    loop {
        let (_, packet) = read_packet(stream)?;
        match packet.first() {
            Some(&ERROR) => return Ok(false),
            Some(&EOF) if packet.len() < 9 => {
                ends += 1;
                if ends == 2 {
                    return Ok(rows == 1);
                }
            }
            _ => rows += usize::from(ends == 1),
        }
    }
}

fn read_packet(stream: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let len = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
    Ok((head[3], read_vec(stream, len)?))
}

fn write_packet(stream: &mut impl Write, number: u8, body: &[u8]) -> io::Result<()> {
    let mut packet = (body.len() as u32).to_le_bytes().to_vec();
    packet[3] = number;
    packet.extend(body);
    stream.write_all(&packet)
}
