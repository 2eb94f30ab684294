"""Keys that the tests plant in the environment, and the search for them in what comes out."""

KEYS = {"SERPER_API_KEY": "planted-serper-7f3a", "JINA_API_KEY": "planted-jina-91c2",
        "EXTRACT_API_KEY": "planted-extract-e05d"}


def leaked(text: str) -> list[str]:
    return [key for key in KEYS.values() if key in text]
