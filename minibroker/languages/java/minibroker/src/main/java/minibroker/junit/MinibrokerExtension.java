package minibroker.junit;

import java.util.LinkedHashMap;
import java.util.Map;
import minibroker.Minibroker;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;
import org.junit.platform.commons.support.AnnotationSupport;

/**
 * Starts a broker for tests.
 *
 * <pre>{@code
 * @RegisterExtension
 * static MinibrokerExtension kafka = new MinibrokerExtension().set("num.partitions", 3);
 * }</pre>
 *
 * In a static field it is one broker for all tests of the class, otherwise one for each test. Tests
 * also get it as a parameter of type Minibroker. {@link WithMinibroker} is the form without a field.
 */
public final class MinibrokerExtension
        implements BeforeAllCallback, BeforeEachCallback, AfterEachCallback, AfterAllCallback, ParameterResolver {
    private final Map<String, Object> settings = new LinkedHashMap<>();
    private Minibroker broker;
    private int users;

    /** Give a setting of the broker. */
    public MinibrokerExtension set(String name, Object value) {
        settings.put(name, value);
        return this;
    }

    /** The running broker. */
    public Minibroker broker() {
        if (broker == null) throw new IllegalStateException("the broker runs only during tests");
        return broker;
    }

    /** Addresses for clients. */
    public String bootstrapServers() {
        return broker().bootstrapServers();
    }

    @Override
    public void beforeAll(ExtensionContext context) {
        start(context);
    }

    @Override
    public void beforeEach(ExtensionContext context) {
        start(context);
    }

    @Override
    public void afterEach(ExtensionContext context) {
        stop();
    }

    @Override
    public void afterAll(ExtensionContext context) {
        stop();
    }

    /** The class, its nested classes and each test use the broker: it runs from the first to the last. */
    private synchronized void start(ExtensionContext context) {
        users++;
        if (broker != null) return;
        Map<String, Object> chosen = new LinkedHashMap<>(settings);
        AnnotationSupport.findAnnotation(context.getRequiredTestClass(), WithMinibroker.class).ifPresent(annotation -> {
            for (String pair : annotation.value()) {
                String[] parts = pair.split("=", 2);
                if (parts.length < 2) throw new IllegalArgumentException("@WithMinibroker: " + pair + " is not name=value");
                chosen.put(parts[0], parts[1]);
            }
        });
        broker = Minibroker.start(chosen);
    }

    private synchronized void stop() {
        if (--users > 0 || broker == null) return;
        broker.close();
        broker = null;
    }

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == Minibroker.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        return broker();
    }
}
