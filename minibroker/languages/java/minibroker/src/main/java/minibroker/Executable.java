package minibroker;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Finds the command of minibroker. */
final class Executable {
    private static final String ADVICE = "Install it with `pip install minibroker` or `pipx install minibroker`, "
            + "or set MINIBROKER to the path of the executable.";
    private static final String HAS_MINIBROKER =
            "import sys; from importlib.util import find_spec as f; sys.exit(not f('minibroker'))";

    private Executable() {}

    /** The resource of jars that contain an executable for a platform, e.g. linux-amd64. */
    static String resource() {
        String system = System.getProperty("os.name").toLowerCase(Locale.ROOT).replace(" ", "");
        return "minibroker/bin/" + system + "-" + System.getProperty("os.arch") + "/minibroker";
    }

    /** Return the command, or throw an exception with all places that were searched. */
    static List<String> find(Map<String, String> environment, ClassLoader loader) throws IOException {
        String chosen = environment.getOrDefault("MINIBROKER", "");
        if (!chosen.isEmpty()) {
            if (isExecutable(Path.of(chosen))) return List.of(chosen);
            throw new MinibrokerException("MINIBROKER is " + chosen + ", which is not an executable file. " + ADVICE);
        }
        try (InputStream packaged = loader.getResourceAsStream(resource())) {
            if (packaged != null) return List.of(unpack(packaged.readAllBytes(), environment));
        }
        String path = environment.getOrDefault("PATH", "");
        Optional<String> installed = inPath(path, "minibroker");
        if (installed.isPresent()) return List.of(installed.get());
        List<String> pythons = Stream.of("python3", "python")
                .flatMap(name -> inPath(path, name).stream())
                .collect(Collectors.toList());
        for (String python : pythons) {
            if (hasMinibroker(python)) return List.of(python, "-m", "minibroker");
        }
        throw new MinibrokerException("minibroker was not found. Searched: the environment variable MINIBROKER "
                + "(not set), the resource " + resource() + ", minibroker in PATH (" + path + "), a Python with "
                + "minibroker (" + (pythons.isEmpty() ? "no python3 or python in PATH" : String.join(", ", pythons))
                + "). " + ADVICE);
    }

    private static boolean isExecutable(Path path) {
        return Files.isRegularFile(path) && Files.isExecutable(path);
    }

    private static Optional<String> inPath(String path, String name) {
        return Stream.of(path.split(File.pathSeparator))
                .filter(folder -> !folder.isEmpty())
                .map(folder -> Path.of(folder, name))
                .filter(Executable::isExecutable)
                .map(Path::toString)
                .findFirst();
    }

    private static boolean hasMinibroker(String python) throws IOException {
        Process process = new ProcessBuilder(python, "-c", HAS_MINIBROKER)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        try {
            return process.waitFor() == 0;
        } catch (InterruptedException interrupted) {
            process.destroy();
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /** Write the executable into the user's cache, once for each content. */
    private static String unpack(byte[] content, Map<String, String> environment) throws IOException {
        String cache = environment.getOrDefault("XDG_CACHE_HOME", System.getProperty("user.home") + "/.cache");
        Path target = Path.of(cache, "minibroker", "minibroker-" + digest(content));
        if (!Files.exists(target)) {
            Files.createDirectories(target.getParent());
            // Only this user may write the temporary file.
            Path fresh = Files.createTempFile(target.getParent(), "unpacking-", "");
            Files.write(fresh, content);
            if (!fresh.toFile().setExecutable(true)) throw new IOException(fresh + " cannot be made executable");
            Files.move(fresh, target, StandardCopyOption.ATOMIC_MOVE);
        }
        return target.toString();
    }

    private static String digest(byte[] content) {
        List<String> hex = new ArrayList<>();
        try {
            for (byte each : MessageDigest.getInstance("SHA-256").digest(content)) hex.add(String.format("%02x", each));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
        return String.join("", hex.subList(0, 8));
    }
}
