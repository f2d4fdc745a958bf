//! PostgreSQL sessions for the load generator.
//!
//! Owns: one connection and the task that drives it. Never: interprets rows.
//! Invariant: an error that carries a SQLSTATE is `Refused`, every other is `Lost`.

use super::db::{DbError, Rows, Target};
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

/// One connection to PostgreSQL; its driver task ends when this is dropped.
pub struct Session {
    client: Client,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Session {
    /// Connects; see [`super::db::Session::connect`].
    pub async fn connect(target: &Target) -> Result<Session, DbError> {
        let mut config = Config::new();
        config.host(&target.host).port(target.port).user(&target.user).dbname(&target.database);
        config.application_name("segue-drill");
        if !target.password.is_empty() {
            config.password(&target.password);
        }
        let (client, connection) = config.connect(NoTls).await.map_err(classify)?;
        // The end of the connection reaches the client as the error of whatever it asks next.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Session { client, driver })
    }

    /// See [`super::db::Session::rows`].
    pub async fn rows(&mut self, sql: &str) -> Result<Rows, DbError> {
        let messages = self.client.simple_query(sql).await.map_err(classify)?;
        let mut rows = Rows::new();
        for message in messages {
            if let SimpleQueryMessage::Row(row) = message {
                rows.push((0..row.len()).map(|c| row.get(c).map(str::to_owned)).collect());
            }
        }
        Ok(rows)
    }
}

fn classify(error: tokio_postgres::Error) -> DbError {
    if let Some(db) = error.as_db_error() {
        return DbError::Refused { code: db.code().code().to_owned(), message: db.message().to_owned() };
    }
    DbError::Lost(Some(std::io::Error::other(error)))
}
