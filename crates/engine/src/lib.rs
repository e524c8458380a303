//! A small tensor-parallel language-model server: the reference user of the data plane.

pub mod api;
pub mod communicator;
pub mod model;
pub mod serving;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tokenizer;
