package minibroker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ExecutableTest {
    @TempDir
    Path folder;

    private String program(String name, int status) throws IOException {
        Path path = folder.resolve(name);
        Files.createDirectories(path.getParent());
        Files.writeString(path, "#!/bin/sh\nexit " + status + "\n");
        assertTrue(path.toFile().setExecutable(true));
        return path.toString();
    }

    private List<String> find(String chosen, String... names) throws IOException {
        StringBuilder path = new StringBuilder();
        for (String name : names) path.append(folder.resolve(name)).append(':');
        Map<String, String> environment =
                Map.of("MINIBROKER", chosen, "PATH", path.toString(), "XDG_CACHE_HOME", folder.resolve("cache").toString());
        try (URLClassLoader loader =
                new URLClassLoader(new URL[] {folder.resolve("jar").toUri().toURL()}, null)) {
            return Executable.find(environment, loader);
        }
    }

    @Test
    void executableIsSearchedInOrder() throws IOException, InterruptedException {
        program("old/python3", 1);
        assertEquals(List.of(program("pythons/python", 0), "-m", "minibroker"), find("", "old", "pythons"));
        assertEquals(List.of(program("installed/minibroker", 0)), find("", "old", "pythons", "installed"));
        Files.createDirectories(folder.resolve("jar"));
        program("jar/" + Executable.resource(), 7);
        for (int times = 0; times < 2; times++) { // It is unpacked at most once.
            List<String> found = find("", "installed");
            assertEquals(7, new ProcessBuilder(found).start().waitFor());
        }
        String chosen = program("chosen", 0);
        assertEquals(List.of(chosen), find(chosen, "installed"));
    }

    @Test
    void missingExecutableIsReportedWithEveryPlaceAndHowToInstallIt() throws IOException {
        String python = program("old/python3", 1);
        String message = assertThrows(MinibrokerException.class, () -> find("", "old")).getMessage();
        for (String text : List.of(
                "MINIBROKER (not set)", Executable.resource(), folder.resolve("old").toString(), python, "pip install minibroker")) {
            assertTrue(message.contains(text), message);
        }
        message = assertThrows(MinibrokerException.class, () -> find("/nowhere", "old")).getMessage();
        assertTrue(message.contains("MINIBROKER is /nowhere"), message);
    }
}
