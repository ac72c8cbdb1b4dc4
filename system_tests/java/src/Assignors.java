import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.PartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.SimpleAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/** Computes assignments of consumer and share groups, one JSON object a line, with Kafka's own assignors. */
public final class Assignors {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(JSON.writeValueAsString(assign(JSON.readTree(line))));
        }
    }

    private static ObjectNode assign(JsonNode group) {
        Map<Uuid, Integer> counts = new HashMap<>();
        group.get("partitions").fields().forEachRemaining(
            each -> counts.put(Uuid.fromString(each.getKey()), each.getValue().asInt()));
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        for (JsonNode member : group.get("members")) {
            addMember(member, members, owners);
        }
        PartitionAssignor assignor = switch (group.get("assignor").asText()) {
            case "range" -> new RangeAssignor();
            case "simple" -> new SimpleAssignor();
            default -> new UniformAssignor();
        };
        SubscriptionType type = group.get("homogeneous").asBoolean()
            ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        Map<String, MemberAssignment> target = assignor.assign(
            new GroupSpecImpl(members, type, owners, Optional.empty()), new Described(counts)).members();
        ObjectNode result = JSON.createObjectNode();
        target.forEach((member, assignment) -> {
            ObjectNode topics = result.putObject(member);
            assignment.partitions().forEach((topic, partitions) -> {
                if (!partitions.isEmpty()) {
                    new TreeSet<>(partitions).forEach(topics.withArray(topic.toString())::add);
                }
            });
        });
        return result;
    }

    private static void addMember(
        JsonNode member, Map<String, MemberSubscriptionAndAssignmentImpl> members,
        Map<Uuid, Map<Integer, String>> owners
    ) {
        Set<Uuid> topics = new HashSet<>();
        member.get("topics").forEach(topic -> topics.add(Uuid.fromString(topic.asText())));
        Map<Uuid, Set<Integer>> assigned = new HashMap<>();
        member.get("assigned").forEach(part -> {
            List<Integer> partitions = new ArrayList<>();
            part.get(1).forEach(partition -> partitions.add(partition.asInt()));
            Uuid topic = Uuid.fromString(part.get(0).asText());
            assigned.put(topic, new HashSet<>(partitions));
            partitions.forEach(partition ->
                owners.computeIfAbsent(topic, each -> new HashMap<>()).put(partition, member.get("id").asText()));
        });
        members.put(member.get("id").asText(), new MemberSubscriptionAndAssignmentImpl(
            Optional.empty(), Optional.ofNullable(member.get("instance_id").textValue()), topics,
            new Assignment(Collections.unmodifiableMap(assigned))));
    }

    private record Described(Map<Uuid, Integer> counts) implements SubscribedTopicDescriber {
        @Override
        public int numPartitions(Uuid topic) {
            return counts.getOrDefault(topic, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topic, int partition) {
            return Set.of();
        }
    }
}
