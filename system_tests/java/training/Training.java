import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import kafka.Kafka;
import kafka.tools.StorageTool;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A broker and clients in one JVM, which loads the classes that most programs of the tests use.
 *
 * The JVM can write them to an archive at its end.
 */
public final class Training {
    private static final String TOPIC = "training";

    private Training() {}

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        int port = freePort();
        startBroker(folder, port, freePort());
        useClients("127.0.0.1:" + port);
        System.exit(0);
    }

    private static void startBroker(Path folder, int port, int controller) throws Exception {
        Path properties = folder.resolve("server.properties");
        Files.write(properties, List.of(
                "process.roles=broker,controller",
                "node.id=1",
                "listeners=PLAINTEXT://127.0.0.1:" + port + ",CONTROLLER://127.0.0.1:" + controller,
                "controller.listener.names=CONTROLLER",
                "controller.quorum.bootstrap.servers=127.0.0.1:" + controller,
                "offsets.topic.num.partitions=1",
                "offsets.topic.replication.factor=1",
                "transaction.state.log.num.partitions=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "group.initial.rebalance.delay.ms=0",
                "log.dirs=" + folder.resolve("data")));
        String[] format = {
            "format", "--standalone", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", properties.toString()
        };
        if (StorageTool.execute(format, System.out) != 0) {
            throw new IllegalStateException("the folder was not formatted");
        }
        var broker = new Thread(() -> Kafka.main(new String[] {properties.toString()}));
        broker.setDaemon(true);
        broker.start();
    }

    private static void useClients(String server) throws Exception {
        Map<String, Object> common = Map.of("bootstrap.servers", server);
        try (var admin = Admin.create(common)) {
            admin.createTopics(List.of(new NewTopic(TOPIC, 1, (short) 1))).all().get();
        }
        Map<String, Object> transactional =
                Map.of("bootstrap.servers", server, "transactional.id", TOPIC);
        var text = new StringSerializer();
        try (var producer = new KafkaProducer<>(transactional, text, text)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(TOPIC, "key", "value")).get();
            producer.commitTransaction();
        }
        Map<String, Object> grouped = Map.of(
                "bootstrap.servers", server, "group.id", TOPIC, "auto.offset.reset", "earliest");
        var read = new StringDeserializer();
        try (var consumer = new KafkaConsumer<>(grouped, read, read)) {
            consumer.subscribe(List.of(TOPIC));
            while (consumer.poll(Duration.ofSeconds(1)).isEmpty()) {}
            consumer.commitSync();
        }
    }

    private static int freePort() throws Exception {
        try (var socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }
}
