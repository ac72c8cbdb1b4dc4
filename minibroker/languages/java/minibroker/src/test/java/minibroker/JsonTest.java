package minibroker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class JsonTest {
    @Test
    void valuesOfEveryKindAreRead() {
        Map<String, Object> read = Json.read(
                " {\"a\": [1, -2.5e3, true, false, null, {}, []], \"b\\n\\u00e9\\\"\\\\\\/\": {\"c\" : \"\"} } ");
        assertEquals(Arrays.asList(1L, -2500.0, true, false, null, Map.of(), List.of()), read.get("a"));
        assertEquals(Map.of("c", ""), read.get("b\né\"\\/"));
    }

    @Test
    void whatIsWrittenIsReadAgain() {
        Map<String, Object> value =
                Map.of("text", "line\n\u0001\"\\é", "list", Arrays.asList(1L, 2.5, true, null), "map", Map.of("k", "v"));
        assertEquals(value, Json.read(Json.write(value)));
    }

    @Test
    void otherTextIsRejected() {
        for (String text : List.of("{\"a\" 1}", "{a: 1}", "{\"a\": nul}")) {
            assertThrows(RuntimeException.class, () -> Json.read(text), text);
        }
    }
}
