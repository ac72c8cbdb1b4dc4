import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command-line programs in one JVM, as each JVM takes a second to start.
 *
 * A line is the name of a class and its arguments, separated by tabs. What the program prints is
 * passed on, then a line of End of Transmission and the exit code follows.
 */
public final class Tools {
    private static final class Ended extends Error {
        final int code;

        Ended(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    private Tools() {}

    public static void main(String[] none) throws Exception {
        Exit.Procedure end = (code, message) -> {
            throw new Ended(code);
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        System.setErr(System.out);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println("\n\u0004" + run(line.split("\t")));
            System.out.flush();
        }
    }

    private static int run(String[] words) {
        try {
            var arguments = java.util.Arrays.copyOfRange(words, 1, words.length);
            var main = Class.forName(words[0]).getMethod("main", String[].class);
            main.invoke(null, (Object) arguments);
            return 0;
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            if (thrown.getCause() instanceof Ended ended) {
                return ended.code;
            }
            thrown.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            return 1;
        }
    }
}
