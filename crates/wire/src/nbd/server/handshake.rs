//! The handshake of a server connection: collecting options, answering them, entering transmission.
//!
//! Owns: the state between greeting and first request. Never: keeps more than one option's bytes, or goes on for ever.
//! Invariant: every option gets exactly one final reply, in order.

use super::{ExportInfo, Phase, Refusal, Session, SessionError, Step, TlsPolicy, meta, options};
use crate::nbd::proto::*;
use crate::nbd::reply::{Replies, ReplyForm};

/// Most bytes of data of one option that are read; longer options are skipped and answered TOO_BIG.
pub const OPTION_DATA_BYTES_MAX: usize = 16 << 10;
/// Most options of one handshake.
pub const HANDSHAKE_OPTIONS_MAX: u32 = 8192;
/// Most bytes of all options of one handshake.
pub const HANDSHAKE_BYTES_MAX: u64 = 4 << 20;

/// State of a handshake.
#[derive(Debug)]
pub(super) struct Negotiation {
    policy: TlsPolicy,
    encrypted: bool,
    no_zeroes: bool,
    form: ReplyForm,
    /// The export for which `base:allocation` was chosen.
    meta_export: Option<String>,
    state: State,
    options_left: u32,
    bytes_left: u64,
    /// Number, length and data so far of the option being read.
    option: u32,
    option_len: usize,
    data: Vec<u8>,
    /// Name being looked up and the extra information asked for.
    name: String,
    wants: options::Wants,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    ClientFlags,
    OptionHead,
    OptionData,
    /// So many bytes of an oversized option are still to be dropped.
    Skip(u64),
    Lookup,
    List,
    Tls,
}

/// Writes the server's first bytes.
pub(super) fn greet(out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC_SERVER.to_be_bytes());
    out.extend_from_slice(&MAGIC_OPTION.to_be_bytes());
    out.extend_from_slice(&(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
}

impl Negotiation {
    pub(super) fn new(policy: TlsPolicy) -> Negotiation {
        Negotiation {
            policy,
            encrypted: false,
            no_zeroes: false,
            form: ReplyForm::Simple,
            meta_export: None,
            state: State::ClientFlags,
            options_left: HANDSHAKE_OPTIONS_MAX,
            bytes_left: HANDSHAKE_BYTES_MAX,
            option: 0,
            option_len: 0,
            data: Vec::new(),
            name: String::new(),
            wants: options::Wants::default(),
        }
    }

    /// Appends an option reply.
    fn reply(&self, out: &mut Vec<u8>, kind: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        out.extend_from_slice(&MAGIC_OPTION_REPLY.to_be_bytes());
        out.extend_from_slice(&self.option.to_be_bytes());
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&(len as u32).to_be_bytes());
        for part in parts {
            out.extend_from_slice(part);
        }
    }

    fn ack(&self, out: &mut Vec<u8>) {
        self.reply(out, rep::ACK, &[]);
    }

    fn refuse(&self, out: &mut Vec<u8>, kind: u32, message: &str) {
        self.reply(out, kind, &[clip(message)]);
    }

    fn client_flags(&mut self, flags: u32) -> Result<(), SessionError> {
        let known = (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES) as u32;
        if flags & !known != 0 {
            return Err(SessionError::UnknownClientFlags(flags));
        }
        self.no_zeroes = flags & handshake_flag::NO_ZEROES as u32 != 0;
        self.state = State::OptionHead;
        Ok(())
    }

    fn option_head(&mut self, head: &[u8; OPTION_BYTES], out: &mut Vec<u8>) -> Result<(), SessionError> {
        if be64(head, 0) != MAGIC_OPTION {
            return Err(SessionError::BadOptionMagic);
        }
        let len = be32(head, 12) as u64;
        self.options_left = self.options_left.checked_sub(1).ok_or(SessionError::HandshakeTooLong)?;
        self.bytes_left = self.bytes_left.checked_sub(len).ok_or(SessionError::HandshakeTooLong)?;
        self.option = be32(head, 8);
        self.data.clear();
        if len as usize > OPTION_DATA_BYTES_MAX {
            if self.option == opt::EXPORT_NAME {
                return Err(SessionError::ExportRefused);
            }
            self.refuse(out, rep::ERR_TOO_BIG, "the data of this option is too long");
            self.state = State::Skip(len);
            return Ok(());
        }
        self.option_len = len as usize;
        self.state = State::OptionData;
        Ok(())
    }

    /// A whole option is here: answers it, or says what has to be asked.
    fn option(&mut self, out: &mut Vec<u8>) -> Result<Step, SessionError> {
        self.state = State::OptionHead;
        let open = matches!(self.option, opt::STARTTLS | opt::ABORT);
        if self.policy == TlsPolicy::Required && !self.encrypted && !open {
            if self.option == opt::EXPORT_NAME {
                return Err(SessionError::TlsRequired);
            }
            self.refuse(out, rep::ERR_TLS_REQD, "this server requires TLS: enable TLS in the client");
            return Ok(Step::NeedBytes);
        }
        let bare = matches!(self.option, opt::LIST | opt::STARTTLS | opt::STRUCTURED_REPLY | opt::EXTENDED_HEADERS);
        if bare && !self.data.is_empty() {
            self.refuse(out, rep::ERR_INVALID, "this option has no data");
            return Ok(Step::NeedBytes);
        }
        match self.option {
            opt::EXPORT_NAME => return self.export_name(),
            opt::GO | opt::INFO => return Ok(self.go(out)),
            opt::ABORT => {
                self.ack(out);
                return Ok(Step::Disconnect);
            }
            opt::LIST => {
                self.state = State::List;
                return Ok(Step::List);
            }
            opt::STARTTLS => return Ok(self.start_tls(out)),
            opt::STRUCTURED_REPLY | opt::EXTENDED_HEADERS => self.raise_form(out),
            opt::SET_META_CONTEXT | opt::LIST_META_CONTEXT => self.meta(out),
            _ => self.refuse(out, rep::ERR_UNSUP, "this server does not know this option"),
        }
        Ok(Step::NeedBytes)
    }

    fn export_name(&mut self) -> Result<Step, SessionError> {
        let name = std::str::from_utf8(&self.data).map_err(|_| SessionError::ExportRefused)?;
        if name.len() > STRING_MAX_BYTES {
            return Err(SessionError::ExportRefused);
        }
        name.clone_into(&mut self.name);
        self.state = State::Lookup;
        Ok(Step::Lookup { enter: true })
    }

    fn go(&mut self, out: &mut Vec<u8>) -> Step {
        match options::parse_go(&self.data) {
            Ok((name, wants)) => {
                name.clone_into(&mut self.name);
                self.wants = wants;
                self.state = State::Lookup;
                Step::Lookup { enter: self.option == opt::GO }
            }
            Err((kind, message)) => {
                self.refuse(out, kind, message);
                Step::NeedBytes
            }
        }
    }

    fn start_tls(&mut self, out: &mut Vec<u8>) -> Step {
        if self.policy == TlsPolicy::Off {
            self.refuse(out, rep::ERR_UNSUP, "this server has no TLS");
            return Step::NeedBytes;
        }
        if self.encrypted {
            self.refuse(out, rep::ERR_INVALID, "TLS is on already");
            return Step::NeedBytes;
        }
        self.ack(out);
        self.state = State::Tls;
        Step::StartTls
    }

    fn raise_form(&mut self, out: &mut Vec<u8>) {
        let to = if self.option == opt::EXTENDED_HEADERS { ReplyForm::Extended } else { ReplyForm::Structured };
        if self.form == to {
            self.refuse(out, rep::ERR_INVALID, "this was agreed already");
        } else if self.form > to {
            self.refuse(out, rep::ERR_EXT_HEADER_REQD, "extended headers were agreed already");
        } else {
            self.form = to;
            self.ack(out);
        }
    }

    fn meta(&mut self, out: &mut Vec<u8>) {
        let set = self.option == opt::SET_META_CONTEXT;
        if set {
            self.meta_export = None;
        }
        if self.form == ReplyForm::Simple {
            return self.refuse(out, rep::ERR_INVALID, "structured replies must be agreed first");
        }
        match meta::parse(&self.data, set) {
            Ok((export, chosen)) => {
                if chosen {
                    let id = if set { BASE_ALLOCATION_ID } else { 0 };
                    self.reply(out, rep::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
                }
                if chosen && set {
                    self.meta_export = Some(export.to_owned());
                }
                self.ack(out);
            }
            Err((kind, message)) => self.refuse(out, kind, message),
        }
    }

    /// Replies to INFO or GO.
    fn describe(&self, info: &ExportInfo, out: &mut Vec<u8>) {
        let flags = info.flags(self.form);
        self.reply(
            out,
            rep::INFO,
            &[&info::EXPORT.to_be_bytes(), &info.size_bytes.to_be_bytes(), &flags.to_be_bytes()],
        );
        if self.wants.name {
            let name = info.name.as_deref().unwrap_or(&self.name);
            self.reply(out, rep::INFO, &[&info::NAME.to_be_bytes(), clip(name)]);
        }
        if self.wants.description && !info.description.is_empty() {
            self.reply(out, rep::INFO, &[&info::DESCRIPTION.to_be_bytes(), clip(&info.description)]);
        }
        let sizes = [BLOCK_MIN_BYTES, BLOCK_PREFERRED_BYTES, PAYLOAD_MAX_BYTES].map(u32::to_be_bytes);
        self.reply(out, rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()]);
        self.ack(out);
    }
}

/// At most as much of a text as the protocol allows, in whole characters.
fn clip(text: &str) -> &[u8] {
    let mut end = text.len().min(STRING_MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

impl Session {
    /// The export that [`Step::Lookup`] asks about, as the client named it; keep a copy, it is forgotten later.
    pub fn export_name(&self) -> &str {
        self.negotiation.as_ref().map_or("", |n| &n.name)
    }

    /// The answer to [`Step::Lookup`]. Send the output afterwards.
    ///
    /// # Panics
    /// When no lookup was asked for.
    pub fn export_ready(&mut self, answer: Result<ExportInfo, Refusal>) {
        let n = self.negotiation.as_mut().expect("a lookup was asked for");
        assert!(n.state == State::Lookup, "a lookup was asked for");
        n.state = State::OptionHead;
        match answer {
            Err(_) if n.option == opt::EXPORT_NAME => {
                self.fail(SessionError::ExportRefused);
            }
            Err(refusal) => n.refuse(&mut self.output, refusal.code as u32, &refusal.message),
            Ok(info) if n.option == opt::INFO => n.describe(&info, &mut self.output),
            Ok(info) => self.enter(&info),
        }
    }

    /// The answer to [`Step::List`]: names and descriptions. Send the output afterwards.
    ///
    /// # Panics
    /// When no list was asked for.
    pub fn list_ready<'a>(&mut self, exports: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let n = self.negotiation.as_mut().expect("a list was asked for");
        assert!(n.state == State::List, "a list was asked for");
        n.state = State::OptionHead;
        for (name, description) in exports {
            let name = clip(name);
            n.reply(&mut self.output, rep::SERVER, &[&(name.len() as u32).to_be_bytes(), name, clip(description)]);
        }
        n.ack(&mut self.output);
    }

    /// The answer to [`Step::List`] when exports are not to be listed. Send the output afterwards.
    ///
    /// # Panics
    /// When no list was asked for.
    pub fn list_refused(&mut self, refusal: &Refusal) {
        let n = self.negotiation.as_mut().expect("a list was asked for");
        assert!(n.state == State::List, "a list was asked for");
        n.state = State::OptionHead;
        n.refuse(&mut self.output, refusal.code as u32, &refusal.message);
    }

    /// TLS is on: what is fed from now on was decrypted. All that was agreed before is forgotten.
    ///
    /// # Panics
    /// When [`Step::StartTls`] did not ask for it.
    pub fn tls_started(&mut self) {
        let n = self.negotiation.as_mut().expect("TLS was asked for");
        assert!(n.state == State::Tls, "TLS was asked for");
        n.state = State::OptionHead;
        n.encrypted = true;
        self.encrypted = true;
        n.form = ReplyForm::Simple;
        n.meta_export = None;
    }

    /// Begins the transmission phase.
    fn enter(&mut self, info: &ExportInfo) {
        let n = self.negotiation.take().expect("a lookup was asked for");
        if n.option == opt::EXPORT_NAME {
            self.output.extend_from_slice(&info.size_bytes.to_be_bytes());
            self.output.extend_from_slice(&info.flags(n.form).to_be_bytes());
            if !n.no_zeroes {
                self.output.extend_from_slice(&[0; 124]);
            }
        } else {
            n.describe(info, &mut self.output);
        }
        self.size_bytes = info.size_bytes;
        self.read_only = info.read_only;
        self.replies = Replies::new(n.form);
        self.base_allocation = n.meta_export.as_deref() == Some(n.name.as_str());
        self.phase = Phase::Transmission;
    }

    /// [`Session::step`] before transmission. Allocates at most one option's data, as it arrives.
    pub(super) fn step_handshake(&mut self, input: &[u8]) -> Result<(usize, Step), SessionError> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let Some(n) = self.negotiation.as_mut() else { return Err(self.ended) };
            let moved = match n.state {
                State::Lookup | State::List | State::Tls => return Ok((used, Step::NeedBytes)),
                State::ClientFlags => rest.first_chunk::<4>().map(|flags| {
                    used += 4;
                    n.client_flags(u32::from_be_bytes(*flags))
                }),
                State::OptionHead => rest.first_chunk().map(|head| {
                    used += OPTION_BYTES;
                    n.option_head(head, &mut self.output)
                }),
                State::Skip(left) => {
                    let skip = left.min(rest.len() as u64);
                    used += skip as usize;
                    n.state = if skip == left { State::OptionHead } else { State::Skip(left - skip) };
                    (skip == left).then_some(Ok(()))
                }
                State::OptionData => {
                    let take = (n.option_len - n.data.len()).min(rest.len());
                    n.data.extend_from_slice(&rest[..take]);
                    used += take;
                    if n.data.len() < n.option_len {
                        return Ok((used, Step::NeedBytes));
                    }
                    match n.option(&mut self.output) {
                        Ok(Step::NeedBytes) => Some(Ok(())),
                        Ok(Step::StartTls) if used < input.len() => Some(Err(SessionError::PlaintextAfterTls)),
                        Ok(step) => {
                            if step == Step::Disconnect {
                                self.phase = Phase::Ended;
                                self.negotiation = None;
                            }
                            return Ok((used, step));
                        }
                        Err(error) => Some(Err(error)),
                    }
                }
            };
            match moved {
                None => return Ok((used, Step::NeedBytes)),
                Some(Ok(())) => {}
                Some(Err(error)) => return Err(self.fail(error)),
            }
        }
    }
}
