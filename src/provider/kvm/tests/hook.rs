//! What a test does at the boundaries between steps.

use std::sync::Arc;

use crate::provider::kvm::pace::Step;

/// Called at every boundary, in the thread that passes it.
#[derive(Clone, Default)]
pub struct Hook(Option<Arc<dyn Fn(Step) + Send + Sync>>);

impl Hook {
    pub fn new(act: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(act)))
    }

    pub fn pass(&self, step: Step) {
        if let Some(act) = &self.0 {
            act(step);
        }
    }
}
