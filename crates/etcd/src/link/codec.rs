//! Requests and answers as bytes.
//!
//! A request is shared, not copied: it is kept until its answer is known, since it may have to be sent once
//! more.

use std::marker::PhantomData;
use std::sync::Arc;

use tonic::Status;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

use crate::proto::Call;

pub(super) struct Shared<Q>(PhantomData<Q>);

impl<Q> Shared<Q> {
    pub(super) fn new() -> Self {
        Shared(PhantomData)
    }
}

impl<Q: Call> Codec for Shared<Q> {
    type Encode = Arc<Q>;
    type Decode = Q::Answer;
    type Encoder = Self;
    type Decoder = ProstDecoder<Q::Answer>;

    fn encoder(&mut self) -> Self::Encoder {
        Shared::new()
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl<Q: Call> Encoder for Shared<Q> {
    type Item = Arc<Q>;
    type Error = Status;

    fn encode(&mut self, ask: Arc<Q>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        ask.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}
