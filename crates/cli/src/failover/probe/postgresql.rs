//! The little of PostgreSQL's protocol (version 3) that a probe needs: log in without a password, run one query.
//!
//! Owns: these messages. Never: interprets more of an answer than "recovered or not".
//! Invariant: after `serves` returned `Ok`, the connection is ready for the next query.

use super::read_vec;
use std::io::{self, Read, Write};

/// Asks the server itself, and whether it has recovered.
const QUERY: &[u8] = b"SELECT pg_is_in_recovery()\0";

/// Logs in; the server must trust the probe's user on this socket.
pub fn log_in(stream: &mut (impl Read + Write), user: &str, database: &str) -> io::Result<()> {
    let mut body = 196_608u32.to_be_bytes().to_vec();
    for text in ["user", user, "database", database, "application_name", "segue"] {
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    let mut message = (body.len() as u32 + 4).to_be_bytes().to_vec();
    message.extend(body);
    stream.write_all(&message)?;
    loop {
        match read_message(stream)? {
            (b'R', body) if body.starts_with(&[0; 4]) => {}
            // A password is wanted.
            (b'R', _) => return Err(io::ErrorKind::PermissionDenied.into()),
            (b'E', _) => return Err(io::ErrorKind::ConnectionRefused.into()),
            (b'Z', _) => return Ok(()),
            _ => {}
        }
    }
}

/// True when the server ran the query and is not in recovery.
pub fn serves(stream: &mut (impl Read + Write)) -> io::Result<bool> {
    let mut message = vec![b'Q'];
    message.extend((QUERY.len() as u32 + 4).to_be_bytes());
    message.extend(QUERY);
    stream.write_all(&message)?;
    let mut recovered = false;
    loop {
        match read_message(stream)? {
            // One row of one column of one letter: count 1, length 1, 'f'.
            (b'D', body) => recovered = body == [0, 1, 0, 0, 0, 1, b'f'],
            (b'E', _) => recovered = false,
            (b'Z', _) => return Ok(recovered),
            _ => {}
        }
    }
}

fn read_message(stream: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let body = read_vec(stream, len.checked_sub(4).ok_or(io::ErrorKind::InvalidData)?)?;
    Ok((head[0], body))
}
