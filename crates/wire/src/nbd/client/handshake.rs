//! The client's handshake: one option at a time, falling back where a server has less.
//!
//! Owns: the order of options. Never: sends an option before the reply to the one before has come.
//! Invariant: transmission begins only when size and flags of the export are known.

use super::{Client, ClientError, ClientOptions, Export, Step};
use crate::nbd::proto::*;
use crate::nbd::reply::ReplyForm;

/// Longest data of an option reply that is accepted, bytes.
const REPLY_DATA_BYTES_MAX: usize = 16 << 10;
/// Most replies to one handshake.
const REPLIES_MAX: u32 = 1024;

/// State of a handshake.
#[derive(Debug)]
pub(super) struct Negotiation {
    options: ClientOptions,
    state: State,
    /// The option whose reply is awaited.
    option: u32,
    kind: u32,
    data_len: usize,
    data: Vec<u8>,
    replies_left: u32,
    context: Option<u32>,
    export: Option<Export>,
    sizes: Option<[u32; 3]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Greeting,
    ReplyHead,
    ReplyData,
    Tls,
}

impl Negotiation {
    pub(super) fn new(options: ClientOptions) -> Negotiation {
        Negotiation {
            options,
            state: State::Greeting,
            option: 0,
            kind: 0,
            data_len: 0,
            data: Vec::new(),
            replies_left: REPLIES_MAX,
            context: None,
            export: None,
            sizes: None,
        }
    }

    fn send(&mut self, out: &mut Vec<u8>, option: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        out.extend_from_slice(&MAGIC_OPTION.to_be_bytes());
        out.extend_from_slice(&option.to_be_bytes());
        out.extend_from_slice(&(len as u32).to_be_bytes());
        for part in parts {
            out.extend_from_slice(part);
        }
        self.option = option;
        self.state = State::ReplyHead;
    }

    fn greeting(&mut self, head: &[u8; 18], out: &mut Vec<u8>) -> Result<(), ClientError> {
        let flags = be16(head, 16);
        let fixed = flags & handshake_flag::FIXED_NEWSTYLE != 0;
        if be64(head, 0) != MAGIC_SERVER || be64(head, 8) != MAGIC_OPTION || !fixed {
            return Err(ClientError::NotNbd);
        }
        let mine = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        out.extend_from_slice(&(mine as u32).to_be_bytes());
        if self.options.tls {
            self.send(out, opt::STARTTLS, &[])
        } else {
            self.ask_form(out, self.options.form)
        }
        Ok(())
    }

    fn ask_form(&mut self, out: &mut Vec<u8>, form: ReplyForm) {
        match form {
            ReplyForm::Extended => self.send(out, opt::EXTENDED_HEADERS, &[]),
            ReplyForm::Structured => self.send(out, opt::STRUCTURED_REPLY, &[]),
            ReplyForm::Simple => self.go(out),
        }
    }

    fn ask_meta(&mut self, out: &mut Vec<u8>) {
        if !self.options.base_allocation {
            return self.go(out);
        }
        let name = std::mem::take(&mut self.options.export);
        let (name_len, query_len) = (name.len() as u32, BASE_ALLOCATION.len() as u32);
        self.send(
            out,
            opt::SET_META_CONTEXT,
            &[
                &name_len.to_be_bytes(),
                name.as_bytes(),
                &1u32.to_be_bytes(),
                &query_len.to_be_bytes(),
                BASE_ALLOCATION.as_bytes(),
            ],
        );
        self.options.export = name;
    }

    fn go(&mut self, out: &mut Vec<u8>) {
        let name = std::mem::take(&mut self.options.export);
        let len = (name.len() as u32).to_be_bytes();
        self.send(out, opt::GO, &[&len, name.as_bytes(), &1u16.to_be_bytes(), &info::BLOCK_SIZE.to_be_bytes()]);
        self.options.export = name;
    }

    fn reply_head(&mut self, head: &[u8; OPTION_REPLY_BYTES]) -> Result<(), ClientError> {
        let len = be32(head, 16) as usize;
        self.replies_left = self.replies_left.checked_sub(1).ok_or(ClientError::BadOptionReply)?;
        if be64(head, 0) != MAGIC_OPTION_REPLY || be32(head, 8) != self.option || len > REPLY_DATA_BYTES_MAX {
            return Err(ClientError::BadOptionReply);
        }
        self.kind = be32(head, 12);
        self.data_len = len;
        self.data.clear();
        self.state = State::ReplyData;
        Ok(())
    }

    fn info(&mut self) -> Result<(), ClientError> {
        let data = &self.data;
        if data.len() < 2 {
            return Err(ClientError::BadOptionReply);
        }
        match (be16(data, 0), data.len()) {
            (info::EXPORT, 12) => {
                self.export = Some(Export {
                    size_bytes: be64(data, 2),
                    flags: be16(data, 10),
                    block_min_bytes: 1,
                    block_preferred_bytes: BLOCK_PREFERRED_BYTES,
                    payload_max_bytes: PAYLOAD_MAX_BYTES,
                });
            }
            (info::BLOCK_SIZE, 14) => {
                let sizes = [be32(data, 2), be32(data, 6), be32(data, 10)];
                let sane = sizes[0].is_power_of_two() && sizes[0] <= 65536 && sizes[1].is_power_of_two();
                if !sane || sizes[1] < sizes[0] || sizes[2] < sizes[0] {
                    return Err(ClientError::BadOptionReply);
                }
                self.sizes = Some(sizes);
            }
            (info::EXPORT | info::BLOCK_SIZE, _) => return Err(ClientError::BadOptionReply),
            _ => {}
        }
        Ok(())
    }
}

impl Client {
    /// TLS is on: what is fed from now on was decrypted.
    ///
    /// # Panics
    /// When [`Step::StartTls`] did not ask for it.
    pub fn tls_started(&mut self) {
        let n = self.negotiation.as_mut().expect("TLS was asked for");
        assert!(n.state == State::Tls, "TLS was asked for");
        n.ask_form(&mut self.output, n.options.form);
    }

    /// A whole option reply is here.
    fn option_reply(&mut self) -> Result<Step, ClientError> {
        let n = self.negotiation.as_mut().ok_or(ClientError::Ended)?;
        let out = &mut self.output;
        n.state = State::ReplyHead;
        match (n.option, n.kind) {
            (opt::STARTTLS, rep::ACK) => {
                n.state = State::Tls;
                return Ok(Step::StartTls);
            }
            (opt::EXTENDED_HEADERS, rep::ACK) => {
                self.form = ReplyForm::Extended;
                n.ask_meta(out);
            }
            (opt::STRUCTURED_REPLY, rep::ACK) => {
                self.form = ReplyForm::Structured;
                n.ask_meta(out);
            }
            (opt::SET_META_CONTEXT, rep::META_CONTEXT) => {
                if n.data.len() >= 4 && &n.data[4..] == BASE_ALLOCATION.as_bytes() {
                    n.context = Some(be32(&n.data, 0));
                }
            }
            (opt::SET_META_CONTEXT, rep::ACK) => n.go(out),
            (opt::GO, rep::INFO) => n.info()?,
            (opt::GO, rep::ACK) => return self.enter(),
            (opt::EXTENDED_HEADERS, kind) if kind & rep::ERROR_BIT != 0 => n.ask_form(out, ReplyForm::Structured),
            (opt::STRUCTURED_REPLY, kind) if kind & rep::ERROR_BIT != 0 => n.go(out),
            (opt::SET_META_CONTEXT, kind) if kind & rep::ERROR_BIT != 0 => {
                n.context = None;
                n.go(out);
            }
            (option, code) if code & rep::ERROR_BIT != 0 => {
                let end = n.data.len().min(STRING_MAX_BYTES);
                self.refusal = String::from_utf8_lossy(&n.data[..end]).into_owned();
                return Err(ClientError::Refused { option, code });
            }
            _ => return Err(ClientError::BadOptionReply),
        }
        Ok(Step::NeedBytes)
    }

    fn enter(&mut self) -> Result<Step, ClientError> {
        let n = self.negotiation.take().ok_or(ClientError::Ended)?;
        let mut export = n.export.ok_or(ClientError::BadOptionReply)?;
        if let Some([min, preferred, max]) = n.sizes {
            export.block_min_bytes = min;
            export.block_preferred_bytes = preferred;
            export.payload_max_bytes = max.min(PAYLOAD_MAX_BYTES);
        }
        self.context = n.context;
        self.export = Some(export);
        Ok(Step::Ready)
    }

    /// [`Client::step`] before transmission.
    pub(super) fn step_handshake(&mut self, input: &[u8]) -> Result<(usize, Step), ClientError> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let n = self.negotiation.as_mut().ok_or(ClientError::Ended)?;
            match n.state {
                State::Tls => return Ok((used, Step::NeedBytes)),
                State::Greeting => {
                    let Some(head) = rest.first_chunk() else { return Ok((used, Step::NeedBytes)) };
                    used += head.len();
                    n.greeting(head, &mut self.output)?;
                }
                State::ReplyHead => {
                    let Some(head) = rest.first_chunk() else { return Ok((used, Step::NeedBytes)) };
                    used += head.len();
                    n.reply_head(head)?;
                }
                State::ReplyData => {
                    let take = (n.data_len - n.data.len()).min(rest.len());
                    n.data.extend_from_slice(&rest[..take]);
                    used += take;
                    if n.data.len() < n.data_len {
                        return Ok((used, Step::NeedBytes));
                    }
                    match self.option_reply()? {
                        Step::NeedBytes => {}
                        Step::StartTls if used < input.len() => return Err(ClientError::BadOptionReply),
                        step => return Ok((used, step)),
                    }
                }
            }
        }
    }
}
