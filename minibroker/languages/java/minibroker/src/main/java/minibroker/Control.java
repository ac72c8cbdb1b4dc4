package minibroker;

import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Requests to the control API of one broker. */
final class Control {
    private final HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final String base;
    private final String token;

    Control(String url) {
        URI parts = URI.create(url);
        String user = parts.getUserInfo();
        token = user == null ? "" : user.substring(user.indexOf(':') + 1);
        base = parts.getScheme() + "://" + parts.getRawAuthority().replaceFirst(".*@", "") + "/v1";
    }

    /** Each part of the path is one segment, whatever it contains; body may be null. */
    Map<String, Object> call(String method, Map<String, ?> body, Map<String, ?> query, String... path) {
        StringBuilder target = new StringBuilder(base);
        for (String part : path) target.append('/').append(encoded(part));
        target.append(query.entrySet().stream()
                .map(entry -> encoded(entry.getKey()) + "=" + encoded(entry.getValue().toString()))
                .collect(Collectors.joining("&", "?", "")));
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(target.toString()))
                .header("Content-Type", "application/json")
                .method(method, body == null ? BodyPublishers.noBody() : BodyPublishers.ofString(Json.write(body)));
        if (!token.isEmpty()) request.header("Authorization", "Bearer " + token);
        return answer(request.build());
    }

    private Map<String, Object> answer(HttpRequest request) {
        HttpResponse<String> response;
        try {
            response = client.send(request, BodyHandlers.ofString());
        } catch (IOException failed) {
            throw new MinibrokerException("UNREACHABLE", request.uri() + ": " + failed);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new MinibrokerException("INTERRUPTED", request.uri() + ": interrupted");
        }
        Map<String, Object> answer = response.body().isEmpty() ? Map.of() : Json.read(response.body());
        if (response.statusCode() < 300) return answer;
        Map<String, Object> error = object(answer.get("error"));
        String code = String.valueOf(error.getOrDefault("code", response.statusCode()));
        String hint = String.valueOf(error.getOrDefault("hint", ""));
        throw new MinibrokerException(code, (code + ": " + error.get("message") + " " + hint).trim());
    }

    private static String encoded(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    /** Return the objects of a list. */
    static List<Map<String, Object>> objects(Object list) {
        return ((List<?>) list).stream().map(Control::object).collect(Collectors.toList());
    }

    private static Map<String, Object> object(Object object) {
        Map<String, Object> copy = new LinkedHashMap<>();
        if (object instanceof Map) ((Map<?, ?>) object).forEach((name, value) -> copy.put((String) name, value));
        return copy;
    }
}
