"""How servers are reached: with certificates of a CA file, of the user's variables, or of the system and certifi; with a key."""

import os
import ssl
from pathlib import Path

from servebench.util.errors import ConfigError, reason_of

Trust = bool | str
"""True: verify by the authorities of the user or the system. A text: by those in this PEM file alone. False: do not verify."""
VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
"""Those of OpenSSL and of requests; any of them replaces the system's authorities."""


def tls_context(trust: Trust = True) -> ssl.SSLContext:
    """Return the context of a client. Raises ConfigError for a CA file that cannot be used, by its setting or variable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # a handshake in the middle of a connection would keep a request from being sent
    context.options |= ssl.OP_NO_RENEGOTIATION
    if trust is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif isinstance(trust, str):
        _load(context, "ca_file", trust)
    elif named := [(name, os.environ[name]) for name in VARIABLES if os.environ.get(name)]:
        for name, value in named:
            _load(context, name, value)
    else:
        import certifi

        context.load_default_certs()
        context.load_verify_locations(certifi.where())
    return context


def _load(context: ssl.SSLContext, name: str, value: str) -> None:
    path = Path(value).expanduser()
    try:
        context.load_verify_locations(**{"capath" if path.is_dir() else "cafile": str(path)})
    except ssl.SSLError as error:
        raise ConfigError(f"{name}={value}: no certificates in PEM form; name a file of CA certificates") from error
    except OSError as error:
        raise ConfigError(
            f"{name}={value} cannot be read: {reason_of(error)}; name a file of CA certificates"
        ) from error


def variable_problem(setting: str, variable: str) -> str | None:
    """Return why the value of an environment variable, which a setting names, cannot be sent in a header."""
    value = os.environ.get(variable, "")
    if not value:
        return f"{setting}={variable}: this environment variable is not set or is empty; export it first"
    if value.isascii() and value.isprintable() and (" " not in value or not setting.endswith("api_key_env")):
        return None
    return f"{setting}={variable}: its value contains a character that no API key has, such as a space"


def access_problems(section: str, key_variable: str | None, trust: Trust) -> list[str]:
    """Return why no server can be reached by the settings `api_key_env` and `ca_file` of a section, one line each: a key that is
    missing or that no header can hold, certificates that cannot be used."""
    problem = None if key_variable is None else variable_problem(f"{section}.api_key_env", key_variable)
    problems = [] if problem is None else [problem]
    try:
        tls_context(trust)
    except ConfigError as error:
        problems.append(f"{section}.{error}" if isinstance(trust, str) else str(error))
    return problems
