import java.io.File;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;

/** Prints the leader epochs of a file, as Kafka reads it, and their start offsets. */
public final class LeaderEpochs {
    private LeaderEpochs() {
    }

    public static void main(String[] arguments) throws Exception {
        File file = new File(arguments[0]);
        for (EpochEntry entry : new LeaderEpochCheckpointFile(file, new LogDirFailureChannel(1)).read()) {
            System.out.println(entry.epoch() + " " + entry.startOffset());
        }
    }
}
