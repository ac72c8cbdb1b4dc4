"""``minibroker security``: wrong and renewed certificates, and tokens, of a running broker.

Owns these commands. It must never know what is wrong with a kind of certificate or token; the
broker makes them. Invariant: each command calls one operation of the control API. Kafka has no
counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

import click

from minibroker.cli.commands import Argument, CommandGroup, examples
from minibroker.cli.control import Connect, control_option
from minibroker.cli.output import emit, json_line
from minibroker.secured import CertificateKind, ClientCertificateKind
from minibroker.token_issuer import Algorithm, IssuedKind, TokenKind

TOKEN_KINDS: Final = get_args(TokenKind)
ISSUED_KINDS: Final = get_args(IssuedKind)

app = CommandGroup(
    "security",
    help="Change certificates and tokens of a broker started with --tls or --sasl oauth.",
    no_args_is_help=True,
)

json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object."
)
_lifetime_option: Callable[[Any], Any] = click.option(
    "--lifetime", "lifetime_s", type=click.IntRange(1), metavar="SECONDS", help="Of the tokens."
)


def _kind_argument(kinds: tuple[str, ...], about: str) -> Callable[[Any], Any]:
    kind = click.Choice(kinds)
    return click.argument("kind", cls=Argument, type=kind, metavar="KIND", about=about)


@app.command(
    "certificate",
    epilog=examples(
        "minibroker security certificate expired",
        "minibroker security certificate valid",
        after="`valid` is a new certificate, as after a renewal.",
    ),
)
@_kind_argument(get_args(CertificateKind), f"One of {', '.join(get_args(CertificateKind))}.")
@control_option
@json_option
def certificate(kind: str, connect: Connect, as_json: bool) -> None:
    """Show new connections another certificate; open connections go on."""
    with connect() as api:
        view = api.post("v1", "certificate", kind=kind)
    emit(json_line(view) if as_json else f"{', '.join(view['listeners'])}: {view['kind']}")


@app.command(
    "client-certificate",
    epilog=examples(
        "minibroker security client-certificate expired > expired.pem",
        "minibroker security client-certificate valid --user alice > alice.pem",
    ),
)
@_kind_argument(
    get_args(ClientCertificateKind), f"One of {', '.join(get_args(ClientCertificateKind))}."
)
@click.option("--user", metavar="NAME", help="The certificate's common name. [default: test]")
@control_option
@json_option
def client_certificate(kind: str, user: str | None, connect: Connect, as_json: bool) -> None:
    """Print a key and a certificate for a client of a broker with --mutual-tls."""
    with connect() as api:
        made = api.post("v1", "certificate", "clients", kind=kind, user=user)
    emit(json_line(made) if as_json else made["pem"].rstrip())


@app.command(
    "issue",
    epilog=examples(
        "minibroker security issue expired",
        "minibroker security issue valid --lifetime 60",
        "minibroker security issue unavailable",
    ),
)
@_kind_argument(ISSUED_KINDS, f"One of {', '.join(ISSUED_KINDS)}.")
@_lifetime_option
@control_option
@json_option
def issue(kind: str, lifetime_s: int | None, connect: Connect, as_json: bool) -> None:
    """Change what clients get from the token endpoint."""
    with connect() as api:
        view = api.post("v1", "oauth", kind=kind, lifetime_s=lifetime_s)
    emit(json_line(view) if as_json else f"{view['token_endpoint']}: {view['kind']}")


@app.command(
    "token",
    epilog=examples(
        "minibroker security token",
        "minibroker security token wrong_audience --subject alice",
    ),
)
@click.argument(
    "kind",
    cls=Argument,
    type=click.Choice(TOKEN_KINDS),
    default="valid",
    metavar="[KIND]",
    about=f"One of {', '.join(TOKEN_KINDS)}.",
)
@click.option("--subject", metavar="NAME", help="The user. [default: test]")
@click.option("--scope", metavar="SCOPE", help="The claim scope.")
@_lifetime_option
@control_option
@json_option
def token(connect: Connect, as_json: bool, **wishes: object) -> None:
    """Print a token."""
    with connect() as api:
        made = api.post("v1", "oauth", "tokens", **wishes)
    emit(json_line(made) if as_json else made["access_token"])


@app.command(
    "rotate-keys",
    epilog=examples(
        "minibroker security rotate-keys",
        "minibroker security rotate-keys --withdraw-old --algorithm RS256",
    ),
)
@click.option("--withdraw-old", is_flag=True, help="Tokens of older keys are invalid.")
@click.option(
    "--algorithm", type=click.Choice(get_args(Algorithm)), help="Of the new key. [default: ES256]"
)
@control_option
@json_option
def rotate_keys(withdraw_old: bool, algorithm: str | None, connect: Connect, as_json: bool) -> None:
    """Sign tokens with a new key."""
    with connect() as api:
        view = api.post("v1", "oauth", "rotate", keep_old=not withdraw_old, algorithm=algorithm)
    emit(json_line(view) if as_json else view["keys"][0])
