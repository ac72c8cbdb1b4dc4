"""What clients of a secured broker are given, in the names of each library.

Owns the configurations as objects, for tests in Python, and as text: properties, JSON, or code of
the library's language where it has an object or a function. It must never make a file but that of
Java's properties. Invariant: the same facts of a `Secured` are in each form, and printed code needs
nothing but the client library and its language.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from minibroker.client.tokens import ClientCredentials, fetch_token
from minibroker.secured import OAUTH, InvalidSecurity, Secured, advice, keep, login_module
from minibroker.token_issuer import write_private

HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
"""Java's class that fetches tokens."""

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""Java's system property with the URLs that clients since 4.0 may fetch tokens from."""


class Code(NamedTuple):
    """An expression of a library's language, in a configuration that is printed."""

    text: str


def keep_client_properties(made: Secured) -> None:
    """Write the file for Java clients, and what ``client-config`` reads."""
    keep(made)
    config = _java(made, "")
    del config["bootstrap.servers"]
    lines = "".join(f"{name}={value}\n" for name, value in config.items())
    write_private(Path(made.properties), (_java_comment(made) + lines).encode())


def client_config(made: Secured, library: str, bootstrap_servers: str) -> dict[str, Any]:
    """The configuration of a client in the names of its library. Raises `InvalidSecurity`."""
    config = _form(library)(made, bootstrap_servers)
    if any(isinstance(value, Code) for value in _leaves(config)):
        return _with_objects(made, _library(library), config)
    return config


def config_text(made: Secured, library: str, bootstrap_servers: str) -> str:
    """The configuration of a client as text: properties, JSON, or code if it is not only data.

    Raises `InvalidSecurity`.
    """
    name = _library(library)
    if name == "franz-go":
        return _franz_go(made, bootstrap_servers)
    config = _form(name)(made, bootstrap_servers)
    if name in ("java", "librdkafka", "confluent-kafka"):
        comment = _java_comment(made) if name == "java" else ""
        return comment + "\n".join(f"{key}={value}" for key, value in config.items())
    if not any(isinstance(value, Code) for value in _leaves(config)):
        return json.dumps(config, indent=2)
    start = "module.exports =" if name == "kafkajs" else "config ="
    return f"{_preamble(made, name)}{start} {_expression(config)}"


def config_json(made: Secured, library: str, bootstrap_servers: str) -> dict[str, Any]:
    """The configuration of a client as JSON: its ``config``, or the ``code`` that makes it.

    Raises `InvalidSecurity`.
    """
    name = _library(library)
    if name != "franz-go":
        config = _form(name)(made, bootstrap_servers)
        if not any(isinstance(value, Code) for value in _leaves(config)):
            return {"library": name, "config": config}
    return {"library": name, "code": config_text(made, name, bootstrap_servers)}


def _library(name: str) -> str:
    """The library of a name, which may be that of a language."""
    return LANGUAGES.get(name.lower(), name.lower())


def _form(library: str) -> Callable[[Secured, str], dict[str, Any]]:
    name = _library(library)
    form = _FORMS.get(name)
    if form is None:
        if name == "franz-go":
            raise InvalidSecurity("franz-go is configured by code: minibroker client-config")
        raise InvalidSecurity(f"there is no client {library!r}{advice(library, CLIENTS)}")
    return form


def _leaves(config: object) -> list[object]:
    if isinstance(config, dict):
        return [leaf for value in config.values() for leaf in _leaves(value)]
    return [config]


# Libraries that are configured by data ------------------------------------------------------------


def _librdkafka(made: Secured, servers: str) -> dict[str, Any]:
    config = {"bootstrap.servers": servers, "security.protocol": made.protocol.lower()}
    if made.tls != "none":
        config["ssl.ca.location"] = made.authority
    if made.tls == "mutual":
        config["ssl.certificate.location"] = config["ssl.key.location"] = made.certificate
    if made.mechanism is not None:
        config["sasl.mechanism"] = made.mechanism
        if made.mechanism == OAUTH:
            config |= {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": made.user,
                "sasl.oauthbearer.client.secret": made.password,
                "sasl.oauthbearer.token.endpoint.url": _token_url(made),
            }
        else:
            config |= {"sasl.username": made.user, "sasl.password": made.password}
    return config


def _java(made: Secured, servers: str) -> dict[str, Any]:
    config = {"bootstrap.servers": servers, "security.protocol": made.protocol}
    if made.tls != "none":
        config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": made.authority}
    if made.tls == "mutual":
        config |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": made.certificate}
    if made.mechanism is not None:
        names = (
            ("clientId", "clientSecret") if made.mechanism == OAUTH else ("username", "password")
        )
        login = f'{names[0]}="{made.user}" {names[1]}="{made.password}"'
        config["sasl.mechanism"] = made.mechanism
        config["sasl.jaas.config"] = f"{login_module(made.mechanism)} required {login};"
    if made.mechanism == OAUTH:
        config["sasl.login.callback.handler.class"] = HANDLER
        config["sasl.oauthbearer.token.endpoint.url"] = _token_url(made)
    return config


def _java_comment(made: Secured) -> str:
    if made.mechanism != OAUTH:
        return ""
    return f"# Clients since Kafka 4.0 need java -D{ALLOWED_URLS}={_token_url(made)}\n"


def _token_url(made: Secured) -> str:
    return f"{made.issuer}/token"


# Libraries that are configured by objects ---------------------------------------------------------


def _kafka_python(made: Secured, servers: str) -> dict[str, Any]:
    config: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": made.protocol}
    if made.tls != "none":
        config["ssl_cafile"] = made.authority
    if made.tls == "mutual":
        config["ssl_certfile"] = config["ssl_keyfile"] = made.certificate
    return config | _python_sasl(made)


def _aiokafka(made: Secured, servers: str) -> dict[str, Any]:
    config: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": made.protocol}
    if made.tls != "none":
        config["ssl_context"] = Code("ssl_context")
    return config | _python_sasl(made)


def _python_sasl(made: Secured) -> dict[str, Any]:
    if made.mechanism is None:
        return {}
    if made.mechanism == OAUTH:
        provider = Code("TokenProvider()")
        return {"sasl_mechanism": OAUTH, "sasl_oauth_token_provider": provider}
    return {
        "sasl_mechanism": made.mechanism,
        "sasl_plain_username": made.user,
        "sasl_plain_password": made.password,
    }


def _kafkajs(made: Secured, servers: str) -> dict[str, Any]:
    config: dict[str, Any] = {"brokers": servers.split(",")}
    if made.tls != "none":
        ca = config["ssl"] = {"ca": [Path(made.authority).read_text()]}
        if made.tls == "mutual":
            ca["key"] = ca["cert"] = [Path(made.certificate).read_text()]
    if made.mechanism == OAUTH:
        config["sasl"] = {"mechanism": "oauthbearer", "oauthBearerProvider": Code("fetchToken")}
    elif made.mechanism is not None:
        name = made.mechanism.lower()
        config["sasl"] = {"mechanism": name, "username": made.user, "password": made.password}
    return config


_FORMS: Final[Mapping[str, Callable[[Secured, str], dict[str, Any]]]] = {
    "confluent-kafka": _librdkafka,
    "librdkafka": _librdkafka,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
    "java": _java,
    "kafkajs": _kafkajs,
}
CLIENTS: Final = (*_FORMS, "franz-go")

LANGUAGES: Final = {"python": "confluent-kafka", "node": "kafkajs", "go": "franz-go"}
"""The default library of each language; ``java`` is the name of both."""


def _with_objects(made: Secured, library: str, config: dict[str, Any]) -> dict[str, Any]:
    """Replace code in the configuration of a library in Python by the objects themselves."""
    if library == "kafkajs":
        raise InvalidSecurity("with OAuth, kafkajs is configured by code: minibroker client-config")
    if "ssl_context" in config:
        context = config["ssl_context"] = ssl.create_default_context(cafile=made.authority)
        if made.tls == "mutual":
            context.load_cert_chain(made.certificate)
    if "sasl_oauth_token_provider" in config:
        credentials = ClientCredentials(_token_url(made), made.user, made.password)
        create = _aiokafka_provider if library == "aiokafka" else _kafka_python_provider
        config["sasl_oauth_token_provider"] = create(credentials)
    return config


def _kafka_python_provider(credentials: ClientCredentials) -> object:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class TokenProvider(AbstractTokenProvider):  # type: ignore[misc, unused-ignore]
        def token(self) -> str:
            return fetch_token(credentials)

    return TokenProvider()


def _aiokafka_provider(credentials: ClientCredentials) -> object:
    import asyncio

    from aiokafka.abc import AbstractTokenProvider

    class TokenProvider(AbstractTokenProvider):  # type: ignore[misc, unused-ignore]
        async def token(self) -> str:
            return await asyncio.to_thread(fetch_token, credentials)

    return TokenProvider()


# Code that is printed -----------------------------------------------------------------------------


def _expression(value: object, indent: str = "") -> str:
    """A configuration as an expression, in Python and in JavaScript."""
    if isinstance(value, Code):
        return value.text
    if not isinstance(value, dict):
        return _literal(value)
    inner = indent + "    "
    lines = [
        f"{inner}{json.dumps(key)}: {_expression(each, inner)}," for key, each in value.items()
    ]
    return "\n".join(["{", *lines, f"{indent}}}"])


def _literal(value: object) -> str:
    # An escaped character beyond 16 bits is another one in each language.
    return json.dumps(value, ensure_ascii=False)


def _preamble(made: Secured, library: str) -> str:
    """The code that precedes a configuration."""
    if library == "kafkajs":
        return _filled(_FETCH_IN_JAVASCRIPT, made)
    parts = []
    if library == "aiokafka" and made.tls != "none":
        parts.append(_filled(_CONTEXT_IN_PYTHON, made))
        if made.tls == "mutual":
            parts.append(_filled(_CHAIN_IN_PYTHON, made))
        parts.append("\n")
    if made.mechanism == OAUTH:
        parts.insert(0, _filled(_FETCH_IN_PYTHON, made))
        form = _PROVIDER_OF_AIOKAFKA if library == "aiokafka" else _PROVIDER_OF_KAFKA_PYTHON
        parts.append(form)
    return "".join(parts)


def _filled(code: str, made: Secured) -> str:
    """Insert the values of a broker as texts, which are the same in the three languages."""
    values = {"AUTHORITY": made.authority, "CERTIFICATE": made.certificate, "USER": made.user}
    if made.mechanism is not None:
        values |= {"PASSWORD": made.password, "TOKEN_URL": _token_url(made)}
    for name, value in values.items():
        code = code.replace(f"<{name}>", _literal(value))
    return code


_FETCH_IN_PYTHON: Final = """\
import asyncio
import json
import urllib.parse
import urllib.request


def fetch_token():
    form = {"grant_type": "client_credentials", "client_id": <USER>, "client_secret": <PASSWORD>}
    data = urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(<TOKEN_URL>, data, timeout=10) as response:
        return json.load(response)["access_token"]


"""

_CONTEXT_IN_PYTHON: Final = """\
import ssl

ssl_context = ssl.create_default_context(cafile=<AUTHORITY>)
"""

_CHAIN_IN_PYTHON: Final = """\
ssl_context.load_cert_chain(<CERTIFICATE>)
"""

_PROVIDER_OF_AIOKAFKA: Final = """\
from aiokafka.abc import AbstractTokenProvider


class TokenProvider(AbstractTokenProvider):
    async def token(self):
        return await asyncio.to_thread(fetch_token)


"""

_PROVIDER_OF_KAFKA_PYTHON: Final = """\
from kafka.net.sasl.oauth import AbstractTokenProvider


class TokenProvider(AbstractTokenProvider):
    def token(self):
        return fetch_token()


"""

_FETCH_IN_JAVASCRIPT: Final = """\
async function fetchToken() {
  const body = new URLSearchParams({
    grant_type: 'client_credentials',
    client_id: <USER>,
    client_secret: <PASSWORD>,
  })
  const response = await fetch(<TOKEN_URL>, { method: 'POST', body })
  if (!response.ok) throw new Error(`no token: ${response.status} ${await response.text()}`)
  return { value: (await response.json()).access_token }
}

"""


def _franz_go(made: Secured, servers: str) -> str:
    """A file with a function that returns the options of a client."""
    packages, lines, options = ["github.com/twmb/franz-go/pkg/kgo"], "", _GO_SEEDS
    functions = ""
    if made.tls != "none":
        packages += ["crypto/tls", "crypto/x509", "os"]
        lines += _GO_TLS + (_GO_CERTIFICATE if made.tls == "mutual" else "")
        options += "\t\tkgo.DialTLSConfig(config),\n"
    if made.mechanism == OAUTH:
        packages += ["context", "encoding/json", "fmt", "net/http", "net/url"]
        packages += ["github.com/twmb/franz-go/pkg/sasl/oauth"]
        options += "\t\tkgo.SASL(oauth.Oauth(fetchToken)),\n"
        functions = _GO_FETCH
    elif made.mechanism is not None:
        package, method = _GO_MECHANISMS[made.mechanism]
        packages += [f"github.com/twmb/franz-go/pkg/sasl/{package}"]
        auth = f"{package}.Auth{{User: <USER>, Pass: <PASSWORD>}}.{method}()"
        options += f"\t\tkgo.SASL({auth}),\n"
    standard, others = (
        [each for each in sorted(packages) if ("." in each) is is_other]
        for is_other in (False, True)
    )
    groups = ["".join(f'\t"{each}"\n' for each in group) for group in (standard, others) if group]
    seeds = ", ".join(map(json.dumps, servers.split(",")))
    code = _GO_FILE.format(
        imports="\n".join(groups), lines=lines, options=options, functions=functions
    )
    return _filled(code.replace("<SERVERS>", seeds), made).rstrip("\n")


_GO_MECHANISMS: Final = {
    "PLAIN": ("plain", "AsMechanism"),
    "SCRAM-SHA-256": ("scram", "AsSha256Mechanism"),
    "SCRAM-SHA-512": ("scram", "AsSha512Mechanism"),
}

_GO_FILE: Final = """\
package main

import (
{imports})

// kafkaOptions returns the options of kgo.NewClient for this broker.
func kafkaOptions() ([]kgo.Opt, error) {{
{lines}\treturn []kgo.Opt{{
{options}\t}}, nil
}}
{functions}"""

_GO_SEEDS: Final = "\t\tkgo.SeedBrokers(<SERVERS>),\n"

_GO_TLS: Final = """\
	authority, err := os.ReadFile(<AUTHORITY>)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	config := &tls.Config{RootCAs: roots}
"""

_GO_CERTIFICATE: Final = """\
	certificate, err := tls.LoadX509KeyPair(<CERTIFICATE>, <CERTIFICATE>)
	if err != nil {
		return nil, err
	}
	config.Certificates = []tls.Certificate{certificate}
"""

_GO_FETCH: Final = """
// fetchToken returns a new token of the issuer.
func fetchToken(ctx context.Context) (oauth.Auth, error) {
	form := url.Values{
		"grant_type":    {"client_credentials"},
		"client_id":     {<USER>},
		"client_secret": {<PASSWORD>},
	}
	response, err := http.PostForm(<TOKEN_URL>, form)
	if err != nil {
		return oauth.Auth{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return oauth.Auth{}, fmt.Errorf("no token: %s", response.Status)
	}
	var answer struct {
		Token string `json:"access_token"`
	}
	err = json.NewDecoder(response.Body).Decode(&answer)
	return oauth.Auth{Token: answer.Token}, err
}
"""
