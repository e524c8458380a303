//! Reads the fields of a JSON object, each with an error that names the field and what it should have been.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// The fields of a request body. `null` counts as absent, and unknown fields are ignored.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(other) => Err(ApiError::bad_request(format!(
                "The request body must be a JSON object, but it is {}.",
                kind(&other)
            ))),
            Err(error) => {
                Err(ApiError::bad_request(format!("The request body is not valid JSON: {error}.")))
            }
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn string(&self, name: &str) -> Result<Option<&str>, ApiError> {
        self.read(name, "a string", Value::as_str)
    }

    pub(super) fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "a boolean", Value::as_bool)
    }

    /// A whole number of at least 1.
    pub(super) fn count(&self, name: &str) -> Result<Option<usize>, ApiError> {
        let count =
            |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|&count| count >= 1);
        self.read(name, "a whole number of at least 1", count)
    }

    pub(super) fn number(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        let number = |value: &Value| value.as_f64().filter(|number| range.contains(number));
        Ok(self.read(name, &expected, number)?.map(|number| number as f32))
    }

    /// A whole number; a negative one counts as its two's complement.
    pub(super) fn seed(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let seed =
            |value: &Value| value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
        self.read(name, "a whole number of 64 bits", seed)
    }

    fn read<'a, T>(
        &'a self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(name, expected, value))
    }
}

/// The error for a field that is not what it should be.
pub(super) fn wrong(name: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::field(name, format!("'{name}' must be {expected}, but it is {}.", kind(found)))
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(value) => format!("the number {value}"),
        Value::String(_) => "a string".into(),
        Value::Array(values) => format!("a list of {}", values.len()),
        Value::Object(_) => "an object".into(),
    }
}
