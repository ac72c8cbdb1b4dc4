package minibroker;

import java.time.Duration;
import java.util.Map;

/** A fault rule that was added. */
public final class Fault implements AutoCloseable {
    private final Control control;
    private final String id;

    Fault(Control control, Map<String, Object> view) {
        this.control = control;
        this.id = (String) view.get("id");
    }

    public String id() {
        return id;
    }

    /** The rule, how often its selectors matched, how often it fired, and what it holds. */
    public Map<String, Object> view() {
        return control.call("GET", null, Map.of(), "faults", id);
    }

    /** Wait until the rule has fired so often; throw an exception after the timeout. */
    public void await(int hits, Duration timeout) {
        control.call("GET", null, Map.of("hits", hits, "timeout_ms", timeout.toMillis()), "faults", id, "wait");
    }

    /** Release what the rule holds, and return how many. */
    public long release() {
        return (Long) control.call("POST", null, Map.of(), "faults", id, "release").get("released");
    }

    /** Remove the rule, and release what it holds. */
    @Override
    public void close() {
        control.call("DELETE", null, Map.of(), "faults", id);
    }
}
