"""HOST:PORT, as users write it."""

from __future__ import annotations

import ipaddress


def check_address(text: str, least: int = 0) -> str:
    """Return an address; raise ValueError unless it is HOST:PORT, with a port from `least` to 65535.

    >>> check_address("127.0.0.1:8443"), check_address("[::1]:0")
    ('127.0.0.1:8443', '[::1]:0')
    """
    host, _, port = text.rpartition(":")
    is_number = port.isascii() and port.isdigit() and least <= int(port[:6]) < 2**16
    if "/" in text:
        raise ValueError("should be HOST:PORT, without a scheme such as https:// and without a path")
    if not host or not is_number or not text.isprintable() or " " in text:
        any_port = ", or 0.0.0.0:0 for any free port" if least == 0 else ""
        raise ValueError(f"should be HOST:PORT, such as 0.0.0.0:8443{any_port}; ports are from {least} to 65535")
    return text


def is_loopback(address: str) -> bool:
    """Return whether HOST:PORT can be reached from this machine only.

    >>> is_loopback("localhost:8443"), is_loopback("[::1]:0"), is_loopback("0.0.0.0:8443")
    (True, True, False)
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
