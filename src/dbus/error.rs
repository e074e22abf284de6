//! Faults as D-Bus errors: `org.proxyd1.Error.<Name>`.

use zbus::DBusError;
use zbus::message::{Header, Message};
use zbus::names::ErrorName;

use crate::model::{Fault, FaultKind};

/// A fault on its way to the caller.
#[derive(Debug)]
pub(super) struct CallError {
    name: String,
    message: String,
}

impl From<Fault> for CallError {
    fn from(fault: Fault) -> Self {
        Self { name: name(fault.kind), message: fault.message }
    }
}

/// The D-Bus name of an error of `kind`.
pub(super) fn name(kind: FaultKind) -> String {
    format!("org.proxyd1.Error.{}", kind.name())
}

impl DBusError for CallError {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        Message::error(call, self.name()).build(&(self.message.as_str(),))
    }

    fn name(&self) -> ErrorName<'_> {
        ErrorName::from_str_unchecked(&self.name)
    }

    fn description(&self) -> Option<&str> {
        Some(&self.message)
    }
}
