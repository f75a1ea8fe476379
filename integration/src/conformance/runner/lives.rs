//! Engines of a case's own: how they end and begin again.

use std::time::Duration;

use super::{Runner, Stop};
use crate::conformance::cases::Identity;
use crate::conformance::target::{Launched, Role};
use crate::conformance::{http, recording};

/// A request that is never answered is given up after this.
const GIVEN_UP: Duration = Duration::from_secs(3);

impl Runner<'_> {
    pub(super) fn launched(&mut self, role: Role) -> Result<&mut Launched, Stop> {
        let own = self.own.get_mut(&role);
        own.ok_or_else(|| Stop::Fail(format!("the case has no {} engine of its own", role.name())))
    }

    pub(super) fn has_died(&mut self) -> Result<(), Stop> {
        let place = self.engine(Role::Decode)?;
        self.checked += 1;
        Ok(http::until_refused(place.address()?)?)
    }

    pub(super) fn never_answered(&mut self, name: &str) -> Result<(), Stop> {
        let request = self.fresh.request(recording::named(name));
        let place = self.engine(Role::Decode)?;
        self.checked += 1;
        match http::ask_within(&place.base, &request, GIVEN_UP) {
            Ok(answer) => Err(Stop::Fail(format!(
                "{name} was answered: {}",
                answer.status
            ))),
            Err(_) => self.has_died(),
        }
    }

    pub(super) fn start_again(&mut self, role: Role, identity: Identity) -> Result<(), Stop> {
        let new = format!("{}-again-{}", role.name(), std::process::id());
        let engine_id = (identity == Identity::New).then_some(new.as_str());
        Ok(self.launched(role)?.start_again(engine_id)?)
    }
}
