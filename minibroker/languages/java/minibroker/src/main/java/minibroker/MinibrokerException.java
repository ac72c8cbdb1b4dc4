package minibroker;

/** A call that the broker rejected, or a broker that did not start. */
public final class MinibrokerException extends RuntimeException {
    private static final long serialVersionUID = 1L;
    private final String code;

    MinibrokerException(String code, String message) {
        super(message);
        this.code = code;
    }

    MinibrokerException(String message) {
        this("MINIBROKER", message);
    }

    /** Kafka's name of the error where it has one. */
    public String code() {
        return code;
    }
}
