import minibroker.Minibroker;

/** Starts a broker, prints its process id, and waits. */
final class Holder {
    public static void main(String[] arguments) throws InterruptedException {
        System.out.println(Minibroker.start().pid());
        Thread.currentThread().join();
    }
}
