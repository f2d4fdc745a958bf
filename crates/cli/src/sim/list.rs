//! `segue sim list`: the models and what each takes.
//!
//! Owns: the words. Never: a setting that no model has.
//! Invariant: every key that `segue sim run --set` accepts is listed.

use crate::Global;
use crate::exit::ExitCode;
use crate::out::Table;
use segue_models::storage::registry::{MODELS, Model};
use segue_models::storage::{KEYS, Key};
use serde_json::{Value, json};

/// Lists the models.
pub fn run(global: &Global) -> ExitCode {
    let models: Vec<Value> = MODELS.iter().map(model_json).collect();
    global.print("sim.list", &json!({ "models": models, "settings": KEYS }), text);
    ExitCode::Yes
}

fn model_json(model: &Model) -> Value {
    json!({ "name": model.name, "about": model.about, "source": model.source, "settings": model.keys })
}

fn text() -> String {
    let mut models = Table::new(&["MODEL", "WHAT IT DOES", "SOURCE"]);
    for model in MODELS {
        models.row(vec![model.name.into(), model.about.into(), model.source.into()]);
    }
    let mut settings = Table::new(&["SETTING", "OF", "DEFAULT", "WHAT IT SETS"]);
    let mut row = |of: &str, key: &Key| {
        let default = if key.default.is_empty() { "-" } else { key.default };
        settings.row(vec![key.name.into(), of.into(), default.into(), key.about.into()]);
    };
    KEYS.iter().for_each(|key| row("all models", key));
    for model in MODELS {
        model.keys.iter().for_each(|key| row(model.name, key));
    }
    format!("{}\n{}", models.render(), settings.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_listed() {
        let text = text();
        for key in KEYS.iter().chain(MODELS.iter().flat_map(|m| m.keys)) {
            assert!(text.lines().any(|l| l.starts_with(key.name)), "{}", key.name);
        }
    }
}
