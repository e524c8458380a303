//! A small tensor-parallel language-model server: the reference user of the data plane.
