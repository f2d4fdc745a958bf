//! MariaDB sessions for the load generator: the text protocol, an account without password, nothing else.
//!
//! Owns: the few packets that this needs. Never: authenticates with a password or speaks TLS.
//! Invariant: packet lengths and counts come from the peer and are checked before they are used.

use super::db::{DbError, Rows, Target};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const CLIENT_LONG_PASSWORD: u32 = 1;
const CLIENT_CONNECT_WITH_DB: u32 = 1 << 3;
const CLIENT_PROTOCOL_41: u32 = 1 << 9;
const CLIENT_TRANSACTIONS: u32 = 1 << 13;
const CLIENT_SECURE_CONNECTION: u32 = 1 << 15;
const CLIENT_MULTI_STATEMENTS: u32 = 1 << 16;
const CLIENT_MULTI_RESULTS: u32 = 1 << 17;
const CLIENT_PLUGIN_AUTH: u32 = 1 << 19;
const CAPABILITIES: u32 = CLIENT_LONG_PASSWORD
    | CLIENT_CONNECT_WITH_DB
    | CLIENT_PROTOCOL_41
    | CLIENT_TRANSACTIONS
    | CLIENT_SECURE_CONNECTION
    | CLIENT_MULTI_STATEMENTS
    | CLIENT_MULTI_RESULTS
    | CLIENT_PLUGIN_AUTH;
const STATUS_MORE_RESULTS: u16 = 8;
const COM_QUERY: u8 = 3;
const UTF8MB4: u8 = 45;
/// Longest packet taken or sent, bytes; the protocol splits larger ones, which a load generator never needs.
const PACKET_BYTES_MAX: usize = (1 << 24) - 2;

/// One connection to MariaDB.
pub struct Session {
    stream: BufReader<TcpStream>,
    sequence: u8,
}

impl Session {
    /// Connects; see [`super::db::Session::connect`].
    pub async fn connect(target: &Target) -> Result<Session, DbError> {
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let mut session = Session { stream: BufReader::new(stream), sequence: 0 };
        let greeting = session.packet().await?;
        if greeting.first() != Some(&10) {
            return Err(malformed("greeting"));
        }
        session.send(&handshake(target)).await?;
        let answer = session.packet().await?;
        if answer.first() != Some(&0) {
            // 0xfe asks for another way to authenticate, which an account without password never needs.
            return Err(malformed("answer to the login"));
        }
        Ok(session)
    }

    /// See [`super::db::Session::rows`].
    pub async fn rows(&mut self, sql: &str) -> Result<Rows, DbError> {
        let mut request = Vec::with_capacity(sql.len() + 1);
        request.push(COM_QUERY);
        request.extend_from_slice(sql.as_bytes());
        self.sequence = 0;
        self.send(&request).await?;
        let mut rows = Rows::new();
        while self.result(&mut rows).await? & STATUS_MORE_RESULTS != 0 {}
        Ok(rows)
    }

    /// Reads the result of one statement and gives the status flags that ended it.
    async fn result(&mut self, rows: &mut Rows) -> Result<u16, DbError> {
        let head = self.packet().await?;
        let mut reader = Reader(&head);
        if head.first() == Some(&0) {
            reader.bytes(1).ok_or_else(|| malformed("OK"))?;
            reader.number().ok_or_else(|| malformed("OK"))?;
            reader.number().ok_or_else(|| malformed("OK"))?;
            return reader.u16().ok_or_else(|| malformed("OK"));
        }
        let columns = reader.number().ok_or_else(|| malformed("column count"))?;
        for _ in 0..columns {
            self.packet().await?;
        }
        self.packet().await?;
        loop {
            let packet = self.packet().await?;
            if packet.first() == Some(&0xfe) && packet.len() < 9 {
                return Reader(&packet[3..]).u16().ok_or_else(|| malformed("EOF"));
            }
            let mut reader = Reader(&packet);
            let mut row = Vec::new();
            for _ in 0..columns {
                row.push(reader.text().ok_or_else(|| malformed("row"))?);
            }
            rows.push(row);
        }
    }

    /// Reads a packet; an error packet becomes `Refused`.
    async fn packet(&mut self) -> Result<Vec<u8>, DbError> {
        let mut head = [0u8; 4];
        self.stream.read_exact(&mut head).await.map_err(lost)?;
        let length = usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
        if length > PACKET_BYTES_MAX {
            return Err(malformed("packet length"));
        }
        self.sequence = head[3].wrapping_add(1);
        let mut body = vec![0u8; length];
        self.stream.read_exact(&mut body).await.map_err(lost)?;
        if body.first() == Some(&0xff) {
            let text = String::from_utf8_lossy(body.get(3..).unwrap_or_default()).into_owned();
            let (code, message) = match text.strip_prefix('#').and_then(|t| t.split_at_checked(5)) {
                Some((code, message)) => (code.to_owned(), message.to_owned()),
                None => (String::new(), text),
            };
            return Err(DbError::Refused { code, message });
        }
        Ok(body)
    }

    async fn send(&mut self, body: &[u8]) -> Result<(), DbError> {
        assert!(body.len() <= PACKET_BYTES_MAX, "a statement fits one packet");
        let length = (body.len() as u32).to_le_bytes();
        let mut packet = vec![length[0], length[1], length[2], self.sequence];
        packet.extend_from_slice(body);
        self.stream.get_mut().write_all(&packet).await.map_err(lost)
    }
}

fn handshake(target: &Target) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&CAPABILITIES.to_le_bytes());
    body.extend_from_slice(&(PACKET_BYTES_MAX as u32).to_le_bytes());
    body.push(UTF8MB4);
    body.extend_from_slice(&[0; 23]);
    body.extend_from_slice(target.user.as_bytes());
    body.push(0);
    // The length of the proof of a password: there is none.
    body.push(0);
    body.extend_from_slice(target.database.as_bytes());
    body.push(0);
    body.extend_from_slice(b"mysql_native_password\0");
    body
}

fn lost(error: io::Error) -> DbError {
    DbError::Lost(Some(error))
}

fn malformed(what: &str) -> DbError {
    lost(io::Error::new(io::ErrorKind::InvalidData, format!("the server sent a {what} this client does not know")))
}

/// Takes a packet apart; every step is `None` when the packet is too short.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.bytes(2)?.try_into().ok()?))
    }

    /// A length-encoded number.
    fn number(&mut self) -> Option<u64> {
        let first = self.bytes(1)?[0];
        let width = match first {
            0..=0xfa => return Some(u64::from(first)),
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            _ => return None,
        };
        let mut wide = [0u8; 8];
        wide[..width].copy_from_slice(self.bytes(width)?);
        Some(u64::from_le_bytes(wide))
    }

    /// A value of a row: `Some(None)` is NULL.
    fn text(&mut self) -> Option<Option<String>> {
        if self.0.first() == Some(&0xfb) {
            self.bytes(1)?;
            return Some(None);
        }
        let length = usize::try_from(self.number()?).ok()?;
        Some(Some(String::from_utf8_lossy(self.bytes(length)?).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_mysql_numbers_and_nulls() {
        let mut reader = Reader(&[0xfa, 0xfc, 1, 2, 0xfb, 2, b'h', b'i', 5, b'x']);
        assert_eq!(reader.number(), Some(0xfa));
        assert_eq!(reader.number(), Some(0x201));
        assert_eq!(reader.text(), Some(None));
        assert_eq!(reader.text(), Some(Some("hi".into())));
        assert_eq!(reader.text(), None);
    }
}
