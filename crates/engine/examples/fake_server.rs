//! Serves the API with a model that has no weights, to try clients against: `fake_server [ADDRESS [STEP_MS]]`, where
//! STEP_MS is how long a step takes.

#[path = "../tests/serving_fakes/mod.rs"]
mod serving_fakes;

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use engine::api::{Api, ApiSettings, not_found, router};
use engine::communicator::Solo;
use engine::serving::{Lead, Limits, RequestQueue, Settings, Unobserved};
use serving_fakes::{Bytes, FakeModel, Says};

const TEXT: &str = "The capital of France is Paris. 🙂 ";
const LIMITS: Limits =
    Limits { slots: 8, context_tokens: 4096, kv_tokens: 8 * 4096, kv_block_tokens: 1 };

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8010".to_owned());
    let step_ms = std::env::args().nth(2).map_or(Ok(2), |step_ms| step_ms.parse())?;
    let queue = Arc::new(RequestQueue::new(64, LIMITS.request_tokens()));
    let api = Api {
        model: "fake".into(),
        queue: Arc::clone(&queue),
        vocabulary: Arc::new(Bytes),
        observer: Arc::new(Unobserved),
        settings: ApiSettings::default(),
    };
    thread::spawn(move || {
        let mut model =
            FakeModel::new(Says::Text(TEXT), LIMITS.slots, LIMITS.context_tokens, LIMITS.kv_tokens);
        model.step_takes = Duration::from_millis(step_ms);
        let lead = Lead {
            queue: &queue,
            vocabulary: Arc::new(Bytes),
            limits: LIMITS,
            settings: &Settings::new(512, LIMITS.slots),
            observer: &Unobserved,
        };
        lead.run(&mut model, &mut Solo)
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(&address).await?;
        println!("http://{}/v1", listener.local_addr()?);
        axum::serve(listener, router(api).fallback(not_found)).await?;
        Ok(())
    })
}
