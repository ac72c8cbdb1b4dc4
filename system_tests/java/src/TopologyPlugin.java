import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.coordinator.group.api.streams.StreamsGroupTopologyDescription;
import org.apache.kafka.coordinator.group.api.streams.StreamsGroupTopologyDescriptionPlugin;

/**
 * A plug-in for Kafka's {@code group.streams.topology.description.plugin.class} that keeps descriptions in memory.
 *
 * <p>Kafka serves StreamsGroupTopologyDescriptionUpdate only with such a plug-in.
 */
public final class TopologyPlugin implements StreamsGroupTopologyDescriptionPlugin {
    private final Map<String, StreamsGroupTopologyDescription> kept = new ConcurrentHashMap<>();

    @Override
    public CompletableFuture<Void> setTopology(
        String group, int epoch, StreamsGroupTopologyDescription description) {
        kept.put(group, description);
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<Void> deleteTopology(String group) {
        kept.remove(group);
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<StreamsGroupTopologyDescription> getTopology(String group, int epoch) {
        return CompletableFuture.completedFuture(kept.get(group));
    }

    @Override
    public void configure(Map<String, ?> configs) {}

    @Override
    public void close() {}
}
