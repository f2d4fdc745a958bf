//! The application's endpoint: a TCP proxy that forwards to the instance that has the right to serve.
//!
//! Owns: the listener, every client connection, and where new ones go. Never: decides where; the race does.
//! Invariant: when [`Endpoint::point`] returns, no byte of any instance but the new target reaches a client any more.
//!
//! It runs on a thread of its own with a single-threaded event loop, so a move is one task aborting the others: there is
//! no moment in which a forwarding task could still be running elsewhere. Cut connections are reset, not closed, so that
//! bytes of a loser that wait in the kernel are thrown away and the client learns at once.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Bytes of each direction's buffer.
const BUFFER_BYTES: usize = 32 << 10;
/// Pause between attempts to reach an instance that refuses.
const RETRY: Duration = Duration::from_millis(10);

/// Counters of an endpoint, since it began.
#[derive(Default, Debug)]
pub struct Counters {
    /// Clients accepted.
    pub accepted: AtomicU64,
    /// Clients connected to an instance now.
    pub open: AtomicU64,
    /// Clients waiting for an instance now.
    pub held: AtomicU64,
    /// Clients refused: held for too long, or too many.
    pub refused: AtomicU64,
    /// Connections cut by moves.
    pub cut: AtomicU64,
}

/// A running endpoint; dropping it closes everything.
pub struct Endpoint {
    moves: mpsc::UnboundedSender<Move>,
    paused: Arc<AtomicBool>,
    address: SocketAddr,
    counters: Arc<Counters>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Move {
    to: Option<u16>,
    done: oneshot::Sender<()>,
}

/// A span between two moves. Whoever forwards holds it; when it is dropped, nobody forwards to its target any more.
struct Era {
    port: Option<u16>,
    _ends: mpsc::Sender<()>,
}

#[derive(Clone)]
struct Shared {
    era: watch::Receiver<Arc<Era>>,
    paused: Arc<AtomicBool>,
    hold: Duration,
    counters: Arc<Counters>,
}

impl Endpoint {
    /// Listens on `listen`; clients are held (at most `hold`) until it is pointed somewhere.
    ///
    /// # Errors
    /// The address is in use or not of this machine.
    pub fn open(listen: SocketAddr, hold: Duration, clients_max: usize) -> io::Result<Endpoint> {
        let (moves, requests) = mpsc::unbounded_channel();
        let counters = Arc::new(Counters::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(async { listen_on(listen) })?;
        let address = listener.local_addr()?;
        let paused = Arc::new(AtomicBool::new(false));
        let (first, ended) = new_era(None);
        let (eras, era) = watch::channel(first);
        let shared = Shared { era, paused: paused.clone(), hold, counters: counters.clone() };
        let server = Server { listener, eras, era_ended: ended, clients_max, shared };
        let serve = move || runtime.block_on(serve(server, requests));
        let thread = std::thread::Builder::new().name("endpoint".into()).spawn(serve)?;
        Ok(Endpoint { moves, paused, address, counters, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// While paused, new clients are held although there is a target: it is suspected, and would only be cut off from
    /// them. Clients that are connected already stay so.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Cuts every connection and sends clients to this port of 127.0.0.1 from now on; `None`: holds them.
    /// Returns once the last connection is cut.
    pub fn point(&self, to: Option<u16>) {
        let (done, cut) = oneshot::channel();
        self.moves.send(Move { to, done }).expect("the endpoint's thread lives as long as its handle");
        cut.blocking_recv().expect("the endpoint's thread answers every move");
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The loop ends when no sender is left.
        let (closed, _) = mpsc::unbounded_channel();
        self.moves = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

struct Server {
    listener: TcpListener,
    eras: watch::Sender<Arc<Era>>,
    /// Answers when the present era has ended.
    era_ended: mpsc::Receiver<()>,
    clients_max: usize,
    shared: Shared,
}

async fn serve(server: Server, mut moves: mpsc::UnboundedReceiver<Move>) {
    let Server { listener, eras, mut era_ended, clients_max, shared } = server;
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            // A move goes before everything else.
            biased;
            moved = moves.recv() => {
                let Some(Move { to, done }) = moved else { return };
                let (next, next_ended) = new_era(to);
                drop(eras.send_replace(next));
                // Every task that forwards in the old era sees the change at its next turn, lets go, and the era ends.
                let _ = std::mem::replace(&mut era_ended, next_ended).recv().await;
                let _ = done.send(());
            }
            Some(_) = clients.join_next(), if !clients.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    shared.counters.accepted.fetch_add(1, Ordering::Relaxed);
                    if clients.len() >= clients_max {
                        refuse(&client, &shared.counters);
                        continue;
                    }
                    clients.spawn(handle(client, shared.clone()));
                }
                // Out of descriptors: let some connections end first.
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }
}

fn new_era(port: Option<u16>) -> (Arc<Era>, mpsc::Receiver<()>) {
    let (ends, ended) = mpsc::channel(1);
    (Arc::new(Era { port, _ends: ends }), ended)
}

/// Serves one client: finds it an instance, then forwards until either side ends or the endpoint moves.
async fn handle(mut client: TcpStream, mut shared: Shared) {
    let _ = client.set_nodelay(true);
    let counters = shared.counters.clone();
    let held = Gauge::up(&counters.held);
    let found = find_instance(&mut shared).await;
    drop(held);
    let Some((mut instance, era)) = found else { return refuse(&client, &counters) };
    let _open = Gauge::up(&counters.open);
    let forward = copy_bidirectional_with_sizes(&mut client, &mut instance, BUFFER_BYTES, BUFFER_BYTES);
    tokio::select! {
        // The change goes before the next byte.
        biased;
        _ = shared.era.changed() => {
            counters.cut.fetch_add(1, Ordering::Relaxed);
            reset_on_close(&client);
            reset_on_close(&instance);
            drop((client, instance));
        }
        ended = forward => if ended.is_err() {
            reset_on_close(&client);
            reset_on_close(&instance);
        }
    }
    drop(era);
}

/// Connects to the present target, waiting for one and for it to listen; `None` after too long.
async fn find_instance(shared: &mut Shared) -> Option<(TcpStream, Arc<Era>)> {
    let until = Instant::now() + shared.hold;
    loop {
        let era = shared.era.borrow_and_update().clone();
        let pause = match era.port {
            None => shared.hold,
            Some(_) if shared.paused.load(Ordering::Relaxed) => RETRY,
            Some(port) => {
                tokio::select! {
                    biased;
                    _ = shared.era.changed() => Duration::ZERO,
                    () = tokio::time::sleep_until(until) => return None,
                    connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) => match connected {
                        Ok(instance) => {
                            let _ = instance.set_nodelay(true);
                            return Some((instance, era));
                        }
                        Err(_) => RETRY,
                    }
                }
            }
        };
        drop(era);
        tokio::select! {
            biased;
            changed = shared.era.changed() => changed.ok()?,
            () = tokio::time::sleep_until(until) => return None,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn refuse(client: &TcpStream, counters: &Counters) {
    counters.refused.fetch_add(1, Ordering::Relaxed);
    reset_on_close(client);
}

/// Closing it will throw away what waits to be sent and tell the peer at once.
fn reset_on_close(stream: &TcpStream) {
    set_zero_linger(stream.as_raw_fd());
}

fn set_zero_linger(fd: RawFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: `fd` is an open socket for the whole call, and the option is a live `linger` of the size given.
    // A failure leaves an ordinary close, which is why the result does not matter.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size) };
}

/// A counter that is one higher while this lives.
struct Gauge<'a>(&'a AtomicU64);

impl Gauge<'_> {
    fn up(counter: &AtomicU64) -> Gauge<'_> {
        counter.fetch_add(1, Ordering::Relaxed);
        Gauge(counter)
    }
}

impl Drop for Gauge<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener as StdListener, TcpStream as StdStream};

    /// A server that greets with its name and then echoes until the client is done.
    fn server(name: &'static str) -> u16 {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let _ = stream.write_all(name.as_bytes());
                    let mut copy = stream.try_clone().unwrap();
                    let _ = std::io::copy(&mut stream, &mut copy);
                    let _ = copy.shutdown(Shutdown::Write);
                });
            }
        });
        port
    }

    fn endpoint(hold: Duration) -> Endpoint {
        Endpoint::open("127.0.0.1:0".parse().unwrap(), hold, 100).unwrap()
    }

    fn connect(endpoint: &Endpoint) -> StdStream {
        let stream = StdStream::connect(endpoint.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn read(stream: &mut StdStream, bytes: usize) -> String {
        let mut text = vec![0; bytes];
        stream.read_exact(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn conform_half_close_reaches_the_other_side() {
        let endpoint = endpoint(Duration::from_secs(20));
        endpoint.point(Some(server("a")));
        let mut client = connect(&endpoint);
        let data = vec![b'x'; 3 << 20];
        let mut sender = client.try_clone().unwrap();
        let sent = data.clone();
        let writing = std::thread::spawn(move || {
            sender.write_all(&sent).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        client.read_to_end(&mut back).unwrap();
        writing.join().unwrap();
        assert_eq!(back.len(), data.len() + 1);
    }

    #[test]
    fn fault_a_move_cuts_every_old_connection_and_new_ones_go_on() {
        let endpoint = endpoint(Duration::from_secs(20));
        endpoint.point(Some(server("a")));
        let mut old: Vec<StdStream> = (0..20).map(|_| connect(&endpoint)).collect();
        old.iter_mut().for_each(|client| assert_eq!(read(client, 1), "a"));
        endpoint.point(Some(server("b")));
        for client in &mut old {
            let _ = client.write_all(b"late");
            let mut rest = Vec::new();
            let ended = client.read_to_end(&mut rest);
            assert!(rest.is_empty(), "bytes of the loser after the move: {rest:?}, {ended:?}");
        }
        assert_eq!(read(&mut connect(&endpoint), 1), "b");
        assert_eq!(endpoint.counters().cut.load(Ordering::Relaxed), 20);
    }

    #[test]
    fn fault_clients_are_held_until_an_instance_serves() {
        let endpoint = endpoint(Duration::from_secs(20));
        let mut client = connect(&endpoint);
        // Nothing listens on the first target: the client must survive both waits.
        let closed = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        endpoint.point(Some(closed));
        endpoint.point(Some(server("c")));
        assert_eq!(read(&mut client, 1), "c");
    }

    #[test]
    fn fault_a_pause_holds_new_clients_and_leaves_the_others() {
        let endpoint = endpoint(Duration::from_secs(20));
        endpoint.point(Some(server("d")));
        let mut old = connect(&endpoint);
        assert_eq!(read(&mut old, 1), "d");
        endpoint.pause(true);
        let mut new = connect(&endpoint);
        old.write_all(b"x").unwrap();
        assert_eq!(read(&mut old, 1), "x");
        assert_eq!(endpoint.counters().open.load(Ordering::Relaxed), 1);
        endpoint.pause(false);
        assert_eq!(read(&mut new, 1), "d");
    }

    #[test]
    fn fault_clients_held_for_too_long_are_refused() {
        let endpoint = endpoint(Duration::from_millis(30));
        let mut client = connect(&endpoint);
        assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
        assert_eq!(endpoint.counters().refused.load(Ordering::Relaxed), 1);
    }
}
