import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.Utils;

/** Computes the metadata hashes of groups with Kafka's own code: a JSON list of topics a line. */
public final class TopicHashes {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, Long> hashes = new HashMap<>();
            for (JsonNode topic : JSON.readTree(line)) {
                Described image = new Described(topic);
                hashes.put(image.name(), Utils.computeTopicHash(image.name(), image));
            }
            System.out.println(Utils.computeGroupHash(hashes));
        }
    }

    /** An image with one topic. */
    private record Described(JsonNode topic)
        implements CoordinatorMetadataImage, CoordinatorMetadataImage.TopicMetadata {
        @Override
        public String name() {
            return topic.get("name").asText();
        }

        @Override
        public Uuid id() {
            return Uuid.fromString(topic.get("id").asText());
        }

        @Override
        public int partitionCount() {
            return topic.get("racks").size();
        }

        @Override
        public List<String> partitionRacks(int partition) {
            List<String> racks = new ArrayList<>();
            topic.get("racks").get(partition).forEach(rack -> racks.add(rack.asText()));
            return racks;
        }

        @Override
        public Set<Uuid> topicIds() {
            return Set.of(id());
        }

        @Override
        public Set<String> topicNames() {
            return Set.of(name());
        }

        @Override
        public Optional<TopicMetadata> topicMetadata(String name) {
            return Optional.of(this);
        }

        @Override
        public Optional<TopicMetadata> topicMetadata(Uuid id) {
            return Optional.of(this);
        }

        @Override
        public CoordinatorMetadataDelta emptyDelta() {
            throw new UnsupportedOperationException();
        }

        @Override
        public long version() {
            return 0;
        }

        @Override
        public boolean isEmpty() {
            return false;
        }
    }
}
