//! A connection to the database under test, whichever it is: run a batch, or read rows as text.
//!
//! Owns: how to reach a database and the two kinds of failure a client must tell apart. Never: retries.
//! Invariant: `Refused` means that the server itself answered with an error; anything else is `Lost`.

use super::{maria, pg};
use std::fmt;
use std::time::Duration;

/// Which database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB or MySQL.
    Maria,
}

impl Kind {
    /// The port it usually has, for a target without one.
    const fn usual_port(self) -> u16 {
        match self {
            Kind::Postgres => 5432,
            Kind::Maria => 3306,
        }
    }
}

/// Where the database is and who asks: `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE`, or `mysql://USER@...`.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// Which database.
    pub kind: Kind,
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// User name.
    pub user: String,
    /// Password, may be empty. MariaDB: must be empty.
    pub password: String,
    /// Database.
    pub database: String,
}

/// Shows no password: this form goes to logs.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}@{}:{}/{}", self.kind, self.user, self.host, self.port, self.database)
    }
}

/// A target that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Unknown beginning.
    #[error("a database is postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE or mysql://USER@HOST[:PORT]/DATABASE")]
    Malformed,
    /// The small client for MariaDB knows no passwords.
    #[error("the load generator reaches MariaDB with an account without password; make one for 127.0.0.1")]
    Password,
}

impl Target {
    /// Reads a target.
    ///
    /// # Errors
    /// [`TargetError`] says what a target looks like.
    pub fn parse(text: &str) -> Result<Target, TargetError> {
        let (scheme, rest) = text.split_once("://").ok_or(TargetError::Malformed)?;
        let kind = match scheme {
            "postgres" | "postgresql" => Kind::Postgres,
            "mysql" | "mariadb" => Kind::Maria,
            _ => return Err(TargetError::Malformed),
        };
        let (who, place) = rest.rsplit_once('@').ok_or(TargetError::Malformed)?;
        let (user, password) = who.split_once(':').unwrap_or((who, ""));
        let (address, database) = place.split_once('/').ok_or(TargetError::Malformed)?;
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| TargetError::Malformed)?),
            None => (address, kind.usual_port()),
        };
        if user.is_empty() || host.is_empty() || database.is_empty() {
            return Err(TargetError::Malformed);
        }
        if kind == Kind::Maria && !password.is_empty() {
            return Err(TargetError::Password);
        }
        let own = str::to_owned;
        Ok(Target { kind, host: own(host), port, user: own(user), password: own(password), database: own(database) })
    }
}

/// Why something asked of a database failed.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// The connection is gone; whether the server did what was asked is unknown.
    #[error("the connection to the database was lost")]
    Lost(#[source] Option<std::io::Error>),
    /// The server answered that it did not do it.
    #[error("the database refused: {code} {message}")]
    Refused {
        /// SQLSTATE.
        code: String,
        /// Its words.
        message: String,
    },
    /// No answer within the time allowed; unknown like `Lost`.
    #[error("no answer from the database within {0:?}")]
    Silent(Duration),
}

/// Rows as text; `None` is NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// One connection.
pub enum Session {
    /// To PostgreSQL.
    Pg(pg::Session),
    /// To MariaDB.
    Maria(maria::Session),
}

impl Session {
    /// Connects, waiting at most `limit`.
    ///
    /// # Errors
    /// `Refused` while the server starts or stops: try again. `Lost`, `Silent`: nobody answers there now.
    pub async fn connect(target: &Target, limit: Duration) -> Result<Session, DbError> {
        let connecting = async {
            match target.kind {
                Kind::Postgres => Ok(Session::Pg(pg::Session::connect(target).await?)),
                Kind::Maria => Ok(Session::Maria(maria::Session::connect(target).await?)),
            }
        };
        tokio::time::timeout(limit, connecting).await.map_err(|_| DbError::Silent(limit))?
    }

    /// Runs one or more statements and waits until all are done, at most `limit`. After an error other than
    /// `Refused` the connection is of no more use.
    ///
    /// # Errors
    /// See [`DbError`].
    pub async fn batch(&mut self, sql: &str, limit: Duration) -> Result<(), DbError> {
        self.rows(sql, limit).await.map(drop)
    }

    /// Like [`Session::batch`], and gives the rows of all statements as text.
    ///
    /// # Errors
    /// See [`DbError`].
    pub async fn rows(&mut self, sql: &str, limit: Duration) -> Result<Rows, DbError> {
        let asking = async {
            match self {
                Session::Pg(session) => session.rows(sql).await,
                Session::Maria(session) => session.rows(sql).await,
            }
        };
        tokio::time::timeout(limit, asking).await.map_err(|_| DbError::Silent(limit))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_targets_are_read() {
        let t = Target::parse("postgres://bob:s:e@127.0.0.1:6000/bank").unwrap();
        assert_eq!((t.kind, t.port, t.user.as_str(), t.password.as_str()), (Kind::Postgres, 6000, "bob", "s:e"));
        assert!(!format!("{t:?}").contains("s:e"));
        assert_eq!(Target::parse("mysql://root@localhost/d").unwrap().port, 3306);
        assert_eq!(Target::parse("mysql://root:x@localhost/d"), Err(TargetError::Password));
        for bad in ["", "pg://a@b/c", "postgres://a@b", "postgres://@b/c", "postgres://a@b:x/c"] {
            assert_eq!(Target::parse(bad), Err(TargetError::Malformed), "{bad}");
        }
    }
}
