package minibroker.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import minibroker.Minibroker;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class MinibrokerExtensionTest {
    private static final Set<Long> SHARED = new HashSet<>();
    private static final Set<Long> OWN = new HashSet<>();

    @RegisterExtension
    static final MinibrokerExtension SECOND = new MinibrokerExtension().set("num.partitions", 2);

    @RegisterExtension
    final MinibrokerExtension own = new MinibrokerExtension();

    @RepeatedTest(2)
    void staticFieldIsOneBrokerForTheClassAndOtherFieldsOneForEachTest() {
        SHARED.add(SECOND.broker().pid());
        assertEquals(1, SHARED.size());
        OWN.add(own.broker().pid());
        assertNotEquals(own.bootstrapServers(), SECOND.bootstrapServers());
    }

    @Test
    void brokerOutsideOfTestsIsAnError() {
        assertThrows(IllegalStateException.class, () -> new MinibrokerExtension().broker());
    }
}

@WithMinibroker("num.partitions=3")
class WithMinibrokerTest {
    private static Minibroker seen;

    @Test
    void testsShareTheBrokerWithItsSettings(Minibroker kafka) {
        check(kafka);
    }

    @Nested
    class NestedTest {
        @Test
        void nestedTestsShareItToo(Minibroker kafka) {
            check(kafka);
        }
    }

    private static void check(Minibroker kafka) {
        if (seen == null) seen = kafka;
        assertSame(seen, kafka);
        assertEquals(List.of(), kafka.faults());
    }
}
