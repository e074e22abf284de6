//! A value of a specification in its variant. Bytes are taken as a whole: a generic
//! variant would make a value of its own of each, a hundred times their size.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_bytes::ByteBuf;
use zbus::as_variant;
use zbus::{Signature, Type};

/// A value of a type that some key of a specification has, or the signature of one that
/// none has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecValue {
    /// `s`
    Text(String),
    /// `ay`
    Bytes(Vec<u8>),
    /// `as`
    Texts(Vec<String>),
    /// `b`
    Flag(bool),
    /// `q`
    U16(u16),
    /// `u`
    U32(u32),
    /// `t`
    U64(u64),
    /// Anything else, by its signature; its content is not kept.
    Other(String),
}

impl SpecValue {
    /// The signature of its type.
    pub fn signature(&self) -> &str {
        match self {
            Self::Text(_) => "s",
            Self::Bytes(_) => "ay",
            Self::Texts(_) => "as",
            Self::Flag(_) => "b",
            Self::U16(_) => "q",
            Self::U32(_) => "u",
            Self::U64(_) => "t",
            Self::Other(signature) => signature,
        }
    }
}

impl Type for SpecValue {
    const SIGNATURE: &'static Signature = &Signature::Variant;
}

impl Serialize for SpecValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(value) => as_variant::serialize(value, serializer),
            Self::Bytes(value) => {
                as_variant::Serialize(&serde_bytes::Bytes::new(value)).serialize(serializer)
            }
            Self::Texts(value) => as_variant::serialize(value, serializer),
            Self::Flag(value) => as_variant::serialize(value, serializer),
            Self::U16(value) => as_variant::serialize(value, serializer),
            Self::U32(value) => as_variant::serialize(value, serializer),
            Self::U64(value) => as_variant::serialize(value, serializer),
            Self::Other(signature) => {
                Err(serde::ser::Error::custom(format!("a value of type {signature} is not kept")))
            }
        }
    }
}

impl<'de> Deserialize<'de> for SpecValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VariantVisitor)
    }
}

/// A variant comes as a sequence of a signature and a value.
struct VariantVisitor;

impl<'de> Visitor<'de> for VariantVisitor {
    type Value = SpecValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a variant")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut variant: A) -> Result<SpecValue, A::Error> {
        let signature: Signature = next(&mut variant)?;
        let signature = signature.to_string();
        Ok(match signature.as_str() {
            "s" => SpecValue::Text(next(&mut variant)?),
            "ay" => SpecValue::Bytes(next::<ByteBuf, _>(&mut variant)?.into_vec()),
            "as" => SpecValue::Texts(next(&mut variant)?),
            "b" => SpecValue::Flag(next(&mut variant)?),
            "q" => SpecValue::U16(next(&mut variant)?),
            "u" => SpecValue::U32(next(&mut variant)?),
            "t" => SpecValue::U64(next(&mut variant)?),
            // `busctl` users write a variant in a variant easily; it means the same.
            "v" => next(&mut variant)?,
            _ => {
                next::<IgnoredAny, _>(&mut variant)?;
                SpecValue::Other(signature)
            }
        })
    }
}

fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(variant: &mut A) -> Result<T, A::Error> {
    variant.next_element()?.ok_or_else(|| A::Error::custom("a variant that ends too soon"))
}

#[cfg(test)]
mod tests {
    use zbus::Variant;
    use zbus::wire::serialized::Context;
    use zbus::wire::{LE, to_bytes};

    use super::*;

    #[test]
    fn every_kind_comes_back() {
        let values = [
            SpecValue::Text("grüße".into()),
            SpecValue::Bytes((0..=255).collect()),
            SpecValue::Texts(vec!["a".into(), String::new()]),
            SpecValue::Flag(true),
            SpecValue::U16(3128),
            SpecValue::U32(2),
            SpecValue::U64(1 << 40),
        ];
        for value in values {
            let encoded = to_bytes(Context::new(LE, 0), &value).unwrap();
            let (decoded, _) = encoded.deserialize::<SpecValue>().unwrap();
            assert_eq!(decoded, value);
            let (general, _) = encoded.deserialize::<Variant<'_>>().unwrap();
            assert_eq!(general.value_signature().to_string(), value.signature());
        }
    }

    #[test]
    fn other_types_are_told_by_their_signature() {
        let nested = Variant::Variant(Box::new(Variant::from(7_u32)));
        let others: [(Variant<'_>, &str); 5] = [
            (Variant::from(-5_i64), "x"),
            (Variant::from((1_u32, "a", vec![Variant::from("b")])), "(usav)"),
            (Variant::from(std::collections::HashMap::from([("k", Variant::from(1_u8))])), "a{sv}"),
            (Variant::from(vec![1.5_f64]), "ad"),
            (nested, "u"),
        ];
        for (value, signature) in others {
            let encoded = to_bytes(Context::new(LE, 0), &value).unwrap();
            let (decoded, _) = encoded.deserialize::<SpecValue>().unwrap();
            assert_eq!(decoded.signature(), signature);
        }
    }
}
