"""The API key in a file."""

from __future__ import annotations

from pathlib import Path

from jobs.errors import UsageError


def read_key_file(name: str | None) -> str | None:
    """Read the API key from the file ``wandb.api_key_file``; ``None`` where the option names none.

    Raises:
      UsageError: the file can't be read, or doesn't hold exactly one word.
    """
    if name is None:
        return None
    try:
        # Fails with a RuntimeError where ~ has no home, with a ValueError where the text isn't one.
        words = Path(name).expanduser().read_text().split()
    except (OSError, RuntimeError, ValueError) as error:
        reason = "not a text file" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", error)
        raise UsageError(f"wandb.api_key_file={name}: can't be read on the driver's node ({reason})") from error
    if len(words) != 1:
        content = "is empty" if not words else f"has {len(words)} words"
        raise UsageError(f"wandb.api_key_file={name}: {content}; it must hold the API key and nothing else")
    return words[0]
