import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Base64;
import java.util.Deque;

/**
 * Kafka's command-line programs in one JVM, as each JVM takes a second to start.
 *
 * A line is the program's input in Base64, the name of its class and its arguments, separated by
 * tabs. What the program prints is passed on, its errors at the end, then a line of End of
 * Transmission and the exit code follow. Shutdown hooks run at the end of the program that added them.
 */
public final class Tools {
    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    private static final PrintStream OUTPUT = System.out;
    private static final Deque<Runnable> hooks = new ArrayDeque<>();

    /** With what the program ended itself, or null while it has not. */
    private static Integer exitCode;

    private Tools() {}

    public static void main(String[] none) throws Exception {
        replaceExits();
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            exitCode = null;
            var errors = new ByteArrayOutputStream();
            System.setOut(OUTPUT);
            System.setErr(new PrintStream(errors, true));
            int code = run(line.split("\t"));
            while (!hooks.isEmpty()) {
                hooks.pop().run();
            }
            errors.writeTo(OUTPUT);
            OUTPUT.println("\n\u0004" + (exitCode == null ? code : exitCode));
            OUTPUT.flush();
        }
    }

    /** Replace what ends the JVM and what runs at its end, which 4.4 has in another package. */
    private static void replaceExits() throws ReflectiveOperationException {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException before44) {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        }
        InvocationHandler end = (self, method, arguments) -> {
            if (exitCode == null) {
                exitCode = (int) arguments[0];
                // A program that catches every error reports this one, too.
                System.setOut(new PrintStream(OutputStream.nullOutputStream()));
                System.setErr(System.out);
            }
            throw new Ended();
        };
        replace(exit, "setExitProcedure", "Procedure", end);
        replace(exit, "setHaltProcedure", "Procedure", end);
        replace(exit, "setShutdownHookAdder", "ShutdownHookAdder", (self, method, arguments) -> {
            hooks.push((Runnable) arguments[1]);
            return null;
        });
    }

    private static void replace(Class<?> exit, String setter, String type, InvocationHandler handler)
            throws ReflectiveOperationException {
        var replaced = Class.forName(exit.getName() + "$" + type);
        var proxy = Proxy.newProxyInstance(
                replaced.getClassLoader(), new Class<?>[] {replaced}, handler);
        exit.getMethod(setter, replaced).invoke(null, proxy);
    }

    private static int run(String[] words) {
        try {
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(words[0])));
            var arguments = Arrays.copyOfRange(words, 2, words.length);
            var main = Class.forName(words[1]).getMethod("main", String[].class);
            main.invoke(null, (Object) arguments);
            return 0;
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            thrown.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            return 1;
        }
    }
}
