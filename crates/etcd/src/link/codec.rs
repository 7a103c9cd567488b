//! Encoding of requests and decoding of replies.
//!
//! A request is shared, not copied: it is kept until its reply is known, because it may have to be sent once
//! more.

use std::marker::PhantomData;
use std::sync::Arc;

use tonic::Status;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

use crate::proto::Call;

pub(super) struct SharedMessage<Q>(PhantomData<Q>);

impl<Q> SharedMessage<Q> {
    pub(super) fn new() -> Self {
        SharedMessage(PhantomData)
    }
}

impl<Q: Call> Codec for SharedMessage<Q> {
    type Encode = Arc<Q>;
    type Decode = Q::Answer;
    type Encoder = Self;
    type Decoder = ProstDecoder<Q::Answer>;

    fn encoder(&mut self) -> Self::Encoder {
        SharedMessage::new()
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl<Q: Call> Encoder for SharedMessage<Q> {
    type Item = Arc<Q>;
    type Error = Status;

    fn encode(&mut self, request: Arc<Q>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        request.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}
