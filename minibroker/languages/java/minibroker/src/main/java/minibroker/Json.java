package minibroker;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** JSON as maps, lists, strings, numbers (Long or Double), booleans and null. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> read(String text) {
        return (Map<String, Object>) new Json(text).value();
    }

    static String write(Object value) {
        if (value instanceof Map) {
            return ((Map<?, ?>) value).entrySet().stream()
                    .map(entry -> quoted(entry.getKey().toString()) + ":" + write(entry.getValue()))
                    .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Iterable) {
            List<String> items = new ArrayList<>();
            ((Iterable<?>) value).forEach(item -> items.add(write(item)));
            return "[" + String.join(",", items) + "]";
        }
        boolean plain = value == null || value instanceof Number || value instanceof Boolean;
        return plain ? String.valueOf(value) : quoted(value.toString());
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        text.chars().forEach(c -> {
            if (c == '"' || c == '\\') quoted.append('\\').append((char) c);
            else if (c < ' ') quoted.append(String.format("\\u%04x", c));
            else quoted.append((char) c);
        });
        return quoted.append('"').toString();
    }

    private Object value() {
        switch (next()) {
            case '{': return object();
            case '[': return list();
            case '"': return string();
            default: return literal();
        }
    }

    private Map<String, Object> object() {
        Map<String, Object> object = new LinkedHashMap<>();
        for (at++; next() != '}'; skip(',')) {
            String name = string();
            next();
            expect(':');
            object.put(name, value());
        }
        at++;
        return object;
    }

    private List<Object> list() {
        List<Object> list = new ArrayList<>();
        for (at++; next() != ']'; skip(',')) list.add(value());
        at++;
        return list;
    }

    private String string() {
        expect('"');
        StringBuilder string = new StringBuilder();
        for (char c; (c = text.charAt(at++)) != '"'; ) string.append(c == '\\' ? escaped() : c);
        return string.toString();
    }

    private char escaped() {
        char c = text.charAt(at++);
        switch (c) {
            case 'n': return '\n';
            case 't': return '\t';
            case 'r': return '\r';
            case 'b': return '\b';
            case 'f': return '\f';
            case 'u': return (char) Integer.parseInt(text.substring(at, at += 4), 16);
            default: return c;
        }
    }

    private Object literal() {
        int start = at;
        while (at < text.length() && ",]} \n\r\t".indexOf(text.charAt(at)) < 0) at++;
        String literal = text.substring(start, at);
        switch (literal) {
            case "null": return null;
            case "true": return true;
            case "false": return false;
            default: break;
        }
        if (literal.matches("-?\\d+")) return Long.valueOf(literal);
        return Double.valueOf(literal);
    }

    private char next() {
        while (Character.isWhitespace(text.charAt(at))) at++;
        return text.charAt(at);
    }

    private void skip(char c) {
        if (next() == c) at++;
    }

    private void expect(char c) {
        if (text.charAt(at++) != c) throw new IllegalArgumentException("expected " + c + " at " + at + " of " + text);
    }
}
