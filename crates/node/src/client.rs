//! The typed client of the admin API, async and blocking, over the node's unix socket.
//!
//! Owns: one HTTP request per call and the errors of asking. Never: retries; a caller knows whether asking again is safe.
//! Invariant: every call ends within its time limit with the node's answer or an error that names the cause.

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use segue_types::Share;
use segue_types::api::{
    AcquireLease, ApiError, ApiErrorKind, BindPool, BoundPool, CollapseReply, CreateVolume, InjectRequest,
    IntegrityEvent, LeaseGrant, MoveInfo, MoveRate, MoveRequest, NewName, NodeInfo, Note, PoolInfo, Recoveries,
    RecoveryScope, ResizeVolume, RevokeTokens, ScrubStatus, SecretHex, SuperGrant, SuperRef, SuperRequest, TokenGrant,
    TokenLimits, TopInfo, UnlockVolume, VolumeInfo,
};
use segue_types::qos::{PoolQos, SetPoolQos, VolumeQos};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Where a node listens when nothing else is said.
pub const DEFAULT_ADMIN_SOCKET: &str = "/run/segue/admin.sock";

/// Why a call got no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers on the socket: start the node, or name its socket.
    #[error("no node answers on {path}; start one with `segue node start`, or name its socket with --admin")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The connection broke in the middle: what was asked may or may not have been done; look before asking again.
    #[error("the connection to the node broke before it answered; look at the state before asking again")]
    Broken(#[source] hyper::Error),
    /// No answer in time: what was asked may or may not have been done; look before asking again.
    #[error("the node did not answer within {0:?}; look at the state before asking again")]
    TimedOut(Duration),
    /// The node refused; the kind says what to do.
    #[error("{}", .0.message)]
    Api(ApiError),
    /// The answer is not of this version of the API: use a `segue` of the node's version.
    #[error("the node's answer is not of this version of the API (HTTP status {status})")]
    Answer {
        /// Its HTTP status.
        status: u16,
        /// What could not be read.
        #[source]
        source: serde_json::Error,
    },
}

impl ClientError {
    /// The node's own kind of refusal, when it was the node that refused.
    pub fn kind(&self) -> Option<ApiErrorKind> {
        match self {
            ClientError::Api(error) => Some(error.kind),
            _ => None,
        }
    }

    /// True when nobody listens: the node is not running.
    pub fn is_down(&self) -> bool {
        matches!(self, ClientError::Connect { .. })
    }
}

/// Asks one node. Cheap to clone; every call is its own connection, so calls may run in parallel.
#[derive(Debug, Clone)]
pub struct AsyncAdminClient {
    socket: PathBuf,
    limit: Duration,
}

/// The blocking twin of [`AsyncAdminClient`]; call it outside of any async runtime, from any thread.
#[derive(Debug, Clone)]
pub struct AdminClient {
    inner: AsyncAdminClient,
    runtime: Arc<tokio::runtime::Runtime>,
}

impl AsyncAdminClient {
    /// A client of the node that listens on `socket`. Connects only when asked something.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        AsyncAdminClient { socket: socket.into(), limit: Duration::from_secs(60) }
    }

    /// The same with another time limit per call (60 s without this).
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        AsyncAdminClient { limit, ..self }
    }

    /// The socket it asks.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    async fn raw(&self, method: Method, path: &str, body: Vec<u8>) -> Result<(StatusCode, Bytes), ClientError> {
        let exchange = self.exchange(method, path, body);
        tokio::time::timeout(self.limit, exchange).await.map_err(|_| ClientError::TimedOut(self.limit))?
    }

    async fn exchange(&self, method: Method, path: &str, body: Vec<u8>) -> Result<(StatusCode, Bytes), ClientError> {
        let stream = tokio::net::UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|source| ClientError::Connect { path: self.socket.clone(), source })?;
        let io = TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(ClientError::Broken)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "segue")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .expect("paths of the API are valid URIs");
        let ask = async {
            let response = sender.send_request(request).await.map_err(ClientError::Broken)?;
            let status = response.status();
            let body = response.into_body().collect().await.map_err(ClientError::Broken)?;
            Ok((status, body.to_bytes()))
        };
        tokio::pin!(ask);
        tokio::select! {
            answer = &mut ask => answer,
            // The connection may end (server closes) just as the whole answer has arrived: then `ask` has it.
            ended = connection => match ended {
                Ok(()) => ask.await,
                Err(error) => Err(ClientError::Broken(error)),
            },
        }
    }

    async fn call<T: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>) -> Result<T, ClientError> {
        let (status, body) = self.raw(method, path, body).await?;
        let bad = |source| ClientError::Answer { status: status.as_u16(), source };
        if status.is_success() {
            let body = if body.is_empty() { &b"null"[..] } else { &body[..] };
            return serde_json::from_slice(body).map_err(bad);
        }
        Err(ClientError::Api(serde_json::from_slice(&body).map_err(bad)?))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, Vec::new()).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.call(Method::POST, path, json(body)).await
    }

    async fn text(&self, path: &str) -> Result<String, ClientError> {
        let (status, body) = self.raw(Method::GET, path, Vec::new()).await?;
        if status.is_success() {
            return Ok(String::from_utf8_lossy(&body).into_owned());
        }
        let bad = |source| ClientError::Answer { status: status.as_u16(), source };
        Err(ClientError::Api(serde_json::from_slice(&body).map_err(bad)?))
    }
}

impl AdminClient {
    /// A blocking client of the node that listens on `socket`. Connects only when asked something.
    ///
    /// # Panics
    /// When the system gives no event queue (out of file descriptors).
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = Arc::new(runtime.expect("an event queue for the client"));
        AdminClient { inner: AsyncAdminClient::new(socket), runtime }
    }

    /// The same with another time limit per call (60 s without this).
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        AdminClient { inner: self.inner.with_limit(limit), ..self }
    }

    /// The socket it asks.
    pub fn socket(&self) -> &Path {
        self.inner.socket()
    }

    /// The async twin.
    pub fn to_async(&self) -> AsyncAdminClient {
        self.inner.clone()
    }
}

fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("API shapes are plain data")
}

/// Percent-encodes a path segment.
fn seg(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-') {
            out.push(b as char);
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

/// Declares each call once, for both clients.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident(&$me:ident $(, $arg:ident: $ty:ty)*) -> $out:ty { $body:expr })*) => {
        impl AsyncAdminClient {
            $($(#[$doc])*
            ///
            /// # Errors
            /// [`ClientError`]; for a refusal of the node see [`ClientError::kind`].
            pub async fn $name(&$me $(, $arg: $ty)*) -> Result<$out, ClientError> { $body.await })*
        }
        impl AdminClient {
            $($(#[$doc])*
            ///
            /// # Errors
            /// [`ClientError`]; for a refusal of the node see [`ClientError::kind`].
            pub fn $name(&$me $(, $arg: $ty)*) -> Result<$out, ClientError> {
                $me.runtime.block_on($me.inner.$name($($arg),*))
            })*
        }
    };
}

calls! {
    /// What the node says of itself.
    fn node(&self) -> NodeInfo { self.get("/v1/node") }
    /// What it does now.
    fn top(&self) -> TopInfo { self.get("/v1/top") }
    /// Ends the node in order: requests are finished, pools checkpointed. Answers before the process ends.
    fn stop(&self) -> () { self.post("/v1/node/stop", &()) }
    /// Lets tasks of the node panic on purpose, or ends that.
    fn inject(&self, request: &InjectRequest) -> () { self.post("/v1/node/inject", request) }
    /// How often the node recovered from a panic.
    fn recoveries(&self) -> Recoveries { self.get("/v1/node/recoveries") }
    /// What recovers together, as declared and as observed.
    fn scopes(&self) -> Vec<RecoveryScope> { self.get("/v1/node/scopes") }
    /// All pools.
    fn pools(&self) -> Vec<PoolInfo> { self.get("/v1/pools") }
    /// One pool.
    fn pool(&self, pool: &str) -> PoolInfo { self.get(&format!("/v1/pools/{}", seg(pool))) }
    /// Writes a checkpoint; returns when it is durable.
    fn checkpoint(&self, pool: &str) -> () { self.post(&format!("/v1/pools/{}/checkpoint", seg(pool)), &()) }
    /// Starts to read and verify every block in the background.
    fn bind_pool(&self, pool: &str, core: u32) -> BoundPool {
        self.post(&format!("/v1/pools/{}/core", seg(pool)), &BindPool { core })
    }
    /// Starts a scrub.
    fn scrub_start(&self, pool: &str) -> () { self.post(&format!("/v1/pools/{}/scrub", seg(pool)), &()) }
    /// How far the scrub is.
    fn scrub_status(&self, pool: &str) -> ScrubStatus { self.get(&format!("/v1/pools/{}/scrub", seg(pool))) }
    /// All volumes of all pools.
    fn volumes(&self) -> Vec<VolumeInfo> { self.get("/v1/volumes") }
    /// Makes a volume.
    fn create_volume(&self, request: &CreateVolume) -> VolumeInfo { self.post("/v1/volumes", request) }
    /// Makes a token; from the first one on the volume demands tokens.
    fn new_token(&self, name: &str, limits: &TokenLimits) -> TokenGrant {
        self.post(&format!("/v1/volumes/{}/tokens", seg(name)), limits)
    }
    /// Makes every token given out so far worthless.
    fn revoke_tokens(&self, name: &str, plain: bool) -> () {
        self.post(&format!("/v1/volumes/{}/tokens/revoke", seg(name)), &RevokeTokens { plain })
    }
    /// The volume demands no tokens any more.
    fn disable_tokens(&self, name: &str) -> () {
        self.call(Method::DELETE, &format!("/v1/volumes/{}/tokens", seg(name)), Vec::new())
    }
    /// Loads the key of an encrypted volume and of its relatives.
    fn unlock(&self, name: &str, key: &SecretHex) -> VolumeInfo {
        self.post(&format!("/v1/volumes/{}/unlock", seg(name)), &UnlockVolume { key: key.clone() })
    }
    /// Wipes the key of an encrypted volume from the node's memory.
    fn lock(&self, name: &str) -> VolumeInfo { self.post(&format!("/v1/volumes/{}/lock", seg(name)), &()) }
    /// One volume.
    fn volume(&self, name: &str) -> VolumeInfo { self.get(&format!("/v1/volumes/{}", seg(name))) }
    /// A volume's share of its drive, and why it waits.
    fn volume_qos(&self, name: &str) -> VolumeQos { self.get(&format!("/v1/volumes/{}/qos", seg(name))) }
    /// Sets a volume's share of its drive.
    fn set_volume_qos(&self, name: &str, share: &Share) -> VolumeQos {
        self.call(Method::PUT, &format!("/v1/volumes/{}/qos", seg(name)), json(share))
    }
    /// How a pool's drive is shared.
    fn pool_qos(&self, pool: &str) -> PoolQos { self.get(&format!("/v1/pools/{}/qos", seg(pool))) }
    /// Changes how a pool's drive is shared, until the next start.
    fn set_pool_qos(&self, pool: &str, set: &SetPoolQos) -> PoolQos {
        self.call(Method::PUT, &format!("/v1/pools/{}/qos", seg(pool)), json(set))
    }
    /// Deletes a volume or snapshot.
    fn delete_volume(&self, name: &str) -> () {
        self.call(Method::DELETE, &format!("/v1/volumes/{}", seg(name)), Vec::new())
    }
    /// Grows a volume.
    fn resize(&self, name: &str, size_bytes: u64) -> VolumeInfo {
        self.post(&format!("/v1/volumes/{}/resize", seg(name)), &ResizeVolume { size_bytes })
    }
    /// Renames a volume.
    fn rename(&self, name: &str, to: &str) -> VolumeInfo {
        self.post(&format!("/v1/volumes/{}/rename", seg(name)), &NewName { name: to.to_owned() })
    }
    /// Takes a read-only snapshot.
    fn snapshot(&self, name: &str, to: &str) -> VolumeInfo {
        self.post(&format!("/v1/volumes/{}/snapshot", seg(name)), &NewName { name: to.to_owned() })
    }
    /// Makes a writable clone of a volume or a snapshot.
    fn clone_volume(&self, name: &str, to: &str) -> VolumeInfo {
        self.post(&format!("/v1/volumes/{}/clone", seg(name)), &NewName { name: to.to_owned() })
    }
    /// Keeps a text (at most 1 KiB) in the volume's record.
    fn set_note(&self, name: &str, note: &str) -> () {
        self.call(Method::PUT, &format!("/v1/volumes/{}/note", seg(name)), json(&Note { note: note.to_owned() }))
    }
    /// Begins to move a volume to another pool; answers when it has begun.
    fn begin_move(&self, name: &str, request: &MoveRequest) -> MoveInfo {
        self.post(&format!("/v1/volumes/{}/move", seg(name)), request)
    }
    /// How the volume's latest move is doing.
    fn move_status(&self, name: &str) -> MoveInfo { self.get(&format!("/v1/volumes/{}/move", seg(name))) }
    /// Caps a running move, at once.
    fn set_move_rate(&self, name: &str, rate_bytes_per_s: u64) -> MoveInfo {
        self.call(Method::PUT, &format!("/v1/volumes/{}/move", seg(name)), json(&MoveRate { rate_bytes_per_s }))
    }
    /// Gives a move up; with `force` also one whose other pool is gone.
    fn abort_move(&self, name: &str, force: bool) -> () {
        self.call(Method::DELETE, &format!("/v1/volumes/{}/move?force={force}", seg(name)), Vec::new())
    }
    /// All moves that the node knows of, the latest last.
    fn moves(&self) -> Vec<MoveInfo> { self.get("/v1/moves") }
    /// Takes a durable lease on the volume, if it is free.
    fn acquire_lease(&self, name: &str, holder: &str) -> LeaseGrant {
        self.post(&format!("/v1/volumes/{}/lease", seg(name)), &AcquireLease { holder: holder.to_owned() })
    }
    /// Gives a durable lease back.
    fn release_lease(&self, name: &str, lease: &str) -> () {
        self.call(Method::DELETE, &format!("/v1/volumes/{}/lease/{}", seg(name), seg(lease)), Vec::new())
    }
    /// Takes the lease away from whoever holds it; also aborts a superposition.
    fn break_lease(&self, name: &str) -> () { self.post(&format!("/v1/volumes/{}/lease/break", seg(name)), &()) }
    /// Starts a superposition of a group of volumes.
    fn superpose(&self, volumes: &[String], holder: &str) -> SuperGrant {
        self.post("/v1/super", &SuperRequest { volumes: volumes.to_vec(), holder: holder.to_owned() })
    }
    /// Asks who won; promotes the child if the primary was not observed. Safe to ask again.
    fn collapse(&self, volume: &str, super_id: u64) -> CollapseReply {
        self.post("/v1/collapse", &SuperRef { volume: volume.to_owned(), super_id })
    }
    /// Ends a superposition in favour of the primary. Safe to ask again.
    fn abort(&self, volume: &str, super_id: u64) -> () {
        self.post("/v1/abort", &SuperRef { volume: volume.to_owned(), super_id })
    }
    /// Things a person must look at, oldest first.
    fn events(&self) -> Vec<IntegrityEvent> { self.get("/v1/events") }
    /// The metrics, as Prometheus reads them.
    fn metrics(&self) -> String { self.text("/metrics") }
    /// The API's description, as OpenAPI JSON.
    fn openapi(&self) -> String { self.text("/openapi.json") }
}
