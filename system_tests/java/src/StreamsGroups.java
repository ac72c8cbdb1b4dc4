import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestData;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestDataJsonConverter;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.api.streams.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.streams.assignor.TopologyDescriber;
import org.apache.kafka.coordinator.group.streams.StreamsTopology;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentConfigsImpl;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberMetadataAndStateImpl;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredInternalTopic;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredSubtopology;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredTopology;
import org.apache.kafka.coordinator.group.streams.topics.InternalTopicManager;
import org.slf4j.helpers.NOPLogger;

/** Computes with Kafka's own classes, one JSON object a line, targets of streams groups, or what a topology needs. */
public final class StreamsGroups {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode group = JSON.readTree(line);
            System.out.println(JSON.writeValueAsString(group.has("members") ? assign(group) : configure(group)));
        }
    }

    private static ObjectNode assign(JsonNode group) {
        Map<String, MemberMetadataAndStateImpl> members = new HashMap<>();
        for (JsonNode member : group.get("members")) {
            Map<String, Map<Integer, Long>> offsets = new HashMap<>();
            member.get("offsets").forEach(each -> offsets
                .computeIfAbsent(each.get(0).asText(), subtopology -> new HashMap<>())
                .put(each.get(1).asInt(), each.get(2).asLong()));
            members.put(member.get("id").asText(), new MemberMetadataAndStateImpl(
                Optional.empty(), Optional.empty(), member.get("process").asText(), Map.of(),
                tasks(member.get("active")), tasks(member.get("standby")), Map.of(), offsets, Map.of()));
        }
        Map<String, Integer> counts = new TreeMap<>();
        group.get("tasks").fields().forEachRemaining(each -> counts.put(each.getKey(), each.getValue().asInt()));
        Set<String> stateful = new HashSet<>();
        group.get("stateful").forEach(each -> stateful.add(each.asText()));
        AssignmentConfigsImpl configs = new AssignmentConfigsImpl(group.get("standby_replicas").asInt(), List.of());
        Map<String, MemberAssignment> target = new StickyTaskAssignor().assign(
            new GroupSpecImpl(members, configs), new Described(counts, stateful)).members();
        ObjectNode result = JSON.createObjectNode();
        target.forEach((member, assignment) -> {
            addTasks(result.putObject(member).putObject("active"), assignment.activeTasks());
            addTasks(result.withObject("/" + member).putObject("standby"), assignment.standbyTasks());
        });
        return result;
    }

    private static Map<String, Set<Integer>> tasks(JsonNode listed) {
        Map<String, Set<Integer>> tasks = new HashMap<>();
        listed.forEach(each -> tasks.computeIfAbsent(each.get(0).asText(), subtopology -> new HashSet<>())
            .add(each.get(1).asInt()));
        return tasks;
    }

    private static void addTasks(ObjectNode result, Map<String, Set<Integer>> tasks) {
        tasks.forEach((subtopology, partitions) ->
            new TreeSet<>(partitions).forEach(result.withArray("/" + subtopology)::add));
    }

    private static ObjectNode configure(JsonNode group) {
        ObjectNode result = JSON.createObjectNode();
        StreamsGroupHeartbeatRequestData request =
            StreamsGroupHeartbeatRequestDataJsonConverter.read(group.get("request"), (short) 1);
        Map<String, Integer> counts = new LinkedHashMap<>();
        group.get("topics").fields().forEachRemaining(each -> counts.put(each.getKey(), each.getValue().asInt()));
        try {
            StreamsTopology topology = StreamsTopology.fromHeartbeatRequest(request.topology());
            topology.sourceTopicMap().forEach(
                (topic, subtopology) -> result.withObject("/sources").put(topic, subtopology.subtopologyId()));
            add(result, InternalTopicManager.configureTopics(
                NOPLogger.NOP_LOGGER, "g", "m", 0, topology, new Topics(counts), Time.SYSTEM));
        } catch (RuntimeException error) {
            result.removeAll();
            result.put("error", Errors.forException(error).code());
            if (Errors.forException(error) != Errors.UNKNOWN_SERVER_ERROR) {
                result.put("text", error.getMessage());
            }
        }
        return result;
    }

    private static void add(ObjectNode result, ConfiguredTopology topology) {
        topology.topicConfigurationException().ifPresent(problem ->
            result.put("status", problem.status().code()).put("detail", problem.getMessage()));
        topology.internalTopicsToBeCreated().values().forEach(each -> result.withArray("/missing").add(each.name()));
        topology.subtopologies().ifPresent(all -> all.forEach((id, each) -> {
            result.withObject("/tasks").put(id, each.numberOfTasks());
            addTopics(result, each);
        }));
    }

    private static void addTopics(ObjectNode result, ConfiguredSubtopology subtopology) {
        List<ConfiguredInternalTopic> topics = new ArrayList<>(subtopology.repartitionSourceTopics().values());
        topics.addAll(subtopology.stateChangelogTopics().values());
        for (ConfiguredInternalTopic topic : topics) {
            ObjectNode shown = result.withObject("/internal").putObject(topic.name());
            shown.put("partitions", topic.numberOfPartitions());
            shown.put("replication_factor", topic.replicationFactor().orElse((short) 0));
            topic.topicConfigs().forEach(shown.putObject("config")::put);
        }
    }

    private record Described(Map<String, Integer> counts, Set<String> stateful) implements TopologyDescriber {
        @Override
        public List<String> subtopologies() {
            return List.copyOf(counts.keySet());
        }

        @Override
        public int maxNumInputPartitions(String subtopology) {
            return counts.get(subtopology);
        }

        @Override
        public boolean isStateful(String subtopology) {
            return stateful.contains(subtopology);
        }
    }

    private record Existing(String name, int partitionCount) implements CoordinatorMetadataImage.TopicMetadata {
        @Override
        public Uuid id() {
            throw new UnsupportedOperationException();
        }

        @Override
        public List<String> partitionRacks(int partition) {
            return List.of();
        }
    }

    /** An image with the names and partitions of topics. */
    private record Topics(Map<String, Integer> counts) implements CoordinatorMetadataImage {
        @Override
        public Set<Uuid> topicIds() {
            throw new UnsupportedOperationException();
        }

        @Override
        public Set<String> topicNames() {
            return counts.keySet();
        }

        @Override
        public Optional<TopicMetadata> topicMetadata(String name) {
            return Optional.ofNullable(counts.get(name)).map(count -> new Existing(name, count));
        }

        @Override
        public Optional<TopicMetadata> topicMetadata(Uuid id) {
            throw new UnsupportedOperationException();
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
            return counts.isEmpty();
        }
    }
}
