import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.errors.FencedMemberEpochException;
import org.apache.kafka.coordinator.group.streams.CurrentAssignmentBuilder;
import org.apache.kafka.coordinator.group.streams.MemberState;
import org.apache.kafka.coordinator.group.streams.StreamsGroupMember;
import org.apache.kafka.coordinator.group.streams.TasksTuple;
import org.apache.kafka.coordinator.group.streams.TasksTupleWithEpochs;

/** Computes with Kafka's own class, one JSON object a line, the next tasks of a member of a streams group. */
public final class StreamsMembers {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String SUBTOPOLOGY = "0";

    private StreamsMembers() {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(JSON.writeValueAsString(next(JSON.readTree(line))));
        }
    }

    private static List<Object> next(JsonNode step) {
        StreamsGroupMember member = StreamsGroupMember.Builder.withDefaults("m")
            .setState(MemberState.fromValue((byte) step.get("state").asInt()))
            .setMemberEpoch(step.get("epoch").asInt())
            .setProcessId("p")
            .setAssignedTasks(held(step.get("assigned")))
            .setTasksPendingRevocation(held(step.get("pending")))
            .build();
        Map<Integer, Set<String>> active = processes(step.get("processes").get(0));
        Map<Integer, Set<String>> standby = processes(step.get("processes").get(1));
        Map<Integer, Set<String>> warmup = processes(step.get("processes").get(2));
        try {
            StreamsGroupMember after = new CurrentAssignmentBuilder(member)
                .withTargetAssignment(step.get("target_epoch").asInt(), tasks(step.get("target")))
                .withCurrentActiveTaskProcessId((id, at) ->
                    active.containsKey(at) ? active.get(at).iterator().next() : null)
                .withCurrentStandbyTaskProcessIds((id, at) -> standby.getOrDefault(at, Set.of()))
                .withCurrentWarmupTaskProcessIds((id, at) -> warmup.getOrDefault(at, Set.of()))
                .withOwnedAssignment(step.get("owned").isNull() ? null : tasks(step.get("owned")))
                .build();
            return List.of((int) after.state().value(), after.memberEpoch(), after.previousMemberEpoch(),
                shown(after.assignedTasks()), shown(after.tasksPendingRevocation()));
        } catch (FencedMemberEpochException fenced) {
            return List.of();
        }
    }

    private static TasksTupleWithEpochs held(JsonNode roles) {
        Map<Integer, Integer> active = new HashMap<>();
        roles.get(0).fields().forEachRemaining(each ->
            active.put(Integer.valueOf(each.getKey()), each.getValue().asInt()));
        return new TasksTupleWithEpochs(
            active.isEmpty() ? Map.of() : Map.of(SUBTOPOLOGY, active), role(roles.get(1)), role(roles.get(2)));
    }

    private static TasksTuple tasks(JsonNode roles) {
        return new TasksTuple(role(roles.get(0)), role(roles.get(1)), role(roles.get(2)));
    }

    private static Map<String, Set<Integer>> role(JsonNode partitions) {
        Set<Integer> found = new HashSet<>();
        partitions.forEach(each -> found.add(each.asInt()));
        return found.isEmpty() ? Map.of() : Map.of(SUBTOPOLOGY, found);
    }

    private static Map<Integer, Set<String>> processes(JsonNode byPartition) {
        Map<Integer, Set<String>> found = new HashMap<>();
        byPartition.fields().forEachRemaining(each -> each.getValue().forEach(process ->
            found.computeIfAbsent(Integer.valueOf(each.getKey()), at -> new HashSet<>()).add(process.asText())));
        return found;
    }

    private static List<Object> shown(TasksTupleWithEpochs tasks) {
        List<Object> roles = new ArrayList<>();
        roles.add(new TreeMap<>(tasks.activeTasksWithEpochs().getOrDefault(SUBTOPOLOGY, Map.of())));
        roles.add(new TreeSet<>(tasks.standbyTasks().getOrDefault(SUBTOPOLOGY, Set.of())));
        roles.add(new TreeSet<>(tasks.warmupTasks().getOrDefault(SUBTOPOLOGY, Set.of())));
        return roles;
    }
}
