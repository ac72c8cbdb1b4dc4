import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;

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
        returnFromExits();
        System.setErr(System.out);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println("\n\u0004" + run(line.split("\t")));
            System.out.flush();
        }
    }

    /** Replace the procedures that end the JVM, which since 4.4 are set at another place. */
    private static void returnFromExits() throws ReflectiveOperationException {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException before44) {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        }
        var type = Class.forName(exit.getName() + "$Procedure");
        var end = Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
                (self, method, arguments) -> {
                    throw new Ended((int) arguments[0]);
                });
        exit.getMethod("setExitProcedure", type).invoke(null, end);
        exit.getMethod("setHaltProcedure", type).invoke(null, end);
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
