//! A client of the scenario with rdkafka: it reads options and operations as lines of JSON, and
//! answers each line. An operation that failed is answered with its error.

use std::io::{self, BufRead, Write};
use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, DefaultConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::{json, Value};

const LOCK: &str = include_str!("../Cargo.lock");
const POLL: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);

/// The version of a crate in the lock file.
fn version_of(name: &str) -> &'static str {
    let named = format!("name = \"{name}\"\nversion = \"");
    let start = LOCK.find(&named).expect("the crate is locked") + named.len();
    LOCK[start..].split('"').next().expect("a version ends")
}

fn partition_of(key: &str) -> (&str, i32) {
    let (topic, partition) = key.rsplit_once('-').expect("a key is TOPIC-PARTITION");
    (topic, partition.parse().expect("a partition is a number"))
}

struct Client {
    options: Value,
    producer: BaseProducer,
    consumer: Option<BaseConsumer>,
}

fn connection(options: &Value) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Emerg);
    config.set(
        "bootstrap.servers",
        options["bootstrap_servers"].as_str().unwrap_or_default(),
    );
    if let Some(username) = options["username"].as_str() {
        config.set("security.protocol", "SASL_PLAINTEXT");
        config.set("sasl.mechanism", "PLAIN");
        config.set("sasl.username", username);
        config.set(
            "sasl.password",
            options["password"].as_str().unwrap_or_default(),
        );
    }
    config
}

impl Client {
    fn open(options: Value) -> Result<Client, KafkaError> {
        let idempotence = options["idempotence"].as_bool().unwrap_or(false);
        let producer = connection(&options)
            .set("enable.idempotence", idempotence.to_string())
            .set("message.timeout.ms", PATIENCE.as_millis().to_string())
            .set("linger.ms", "0")
            .create()?;
        Ok(Client {
            options,
            producer,
            consumer: None,
        })
    }

    fn subscribe(&mut self, keys: &Value) -> Result<(), KafkaError> {
        let (topic, _) = partition_of(keys[0].as_str().expect("keys are strings"));
        let consumer: BaseConsumer<DefaultConsumerContext> = connection(&self.options)
            .set(
                "group.id",
                self.options["group"].as_str().unwrap_or_default(),
            )
            .set("auto.commit.interval.ms", "100")
            .set("auto.offset.reset", "earliest")
            .set("fetch.wait.max.ms", "50")
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "1000")
            .create()?;
        consumer.subscribe(&[topic])?;
        self.consumer = Some(consumer);
        Ok(())
    }

    fn perform(&mut self, asked: &Value) -> Result<(), KafkaError> {
        if asked["operation"] == "subscribe" {
            return self.subscribe(&asked["keys"]);
        }
        for step in asked["steps"].as_array().into_iter().flatten() {
            match step["send"].as_str() {
                Some(key) => self.send(key, &step["value"].to_string())?,
                None => self.poll()?,
            }
        }
        Ok(())
    }

    fn send(&self, key: &str, value: &str) -> Result<(), KafkaError> {
        let (topic, partition) = partition_of(key);
        let record = BaseRecord::<(), str>::to(topic)
            .partition(partition)
            .payload(value);
        self.producer.send(record).map_err(|(error, _)| error)?;
        self.producer.flush(PATIENCE)
    }

    fn poll(&self) -> Result<(), KafkaError> {
        let polled = self
            .consumer
            .as_ref()
            .and_then(|consumer| consumer.poll(POLL));
        polled.transpose().map(|_| ())
    }
}

fn main() {
    let mut client: Option<Client> = None;
    for line in io::stdin().lock().lines() {
        let asked: Value = serde_json::from_str(&line.expect("a line is text")).expect("JSON");
        let answer = match &mut client {
            None => {
                client = Some(Client::open(asked).expect("the client starts"));
                let (library, bundled) = (version_of("rdkafka"), version_of("rdkafka-sys"));
                json!({"client": format!("rdkafka {library} (rdkafka-sys {bundled})")})
            }
            Some(client) => match client.perform(&asked) {
                Ok(()) => json!({"type": "ok"}),
                Err(error) => json!({"type": "unknown", "error": error.to_string()}),
            },
        };
        println!("{answer}");
        io::stdout().flush().expect("the answer is read");
    }
    if let Some(consumer) = client.and_then(|client| client.consumer) {
        drop(consumer); // it leaves its group
    }
}
