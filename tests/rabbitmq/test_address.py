import pytest

from bide.model.errors import InvalidArgument
from bide.targets.amqp import parse


@pytest.mark.parametrize(
    ("url", "broker", "exchange", "key"),
    [
        ("amqp://mq?exchange=shop", "amqp://mq/%2F", "shop", ""),
        ("amqp://mq/?exchange=shop&key=a.b", "amqp://mq/%2F", "shop", "a.b"),
        ("amqp://mq/%2F?key=orders", "amqp://mq/%2F", "", "orders"),
        ("amqps://u:p@mq:5671/a%2Fb?exchange=x", "amqps://u:p@mq:5671/a%2Fb", "x", ""),
    ],
)
def test_a_url_names_broker_exchange_and_key(
    url: str, broker: str, exchange: str, key: str
) -> None:
    found = parse(url)
    assert (found.broker, found.exchange, found.key) == (broker, exchange, key)
    assert parse(found.url) == found


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://mq/?exchange=x", "must be amqp://"),
        ("amqp:///?exchange=x", "must be amqp://"),
        ("amqp://mq:0/?exchange=x", "must be amqp://"),
        ("amqp://mq:x/?exchange=x", "not a valid URL"),
        ("amqp://mq/", "names no exchange"),
        ("amqp://mq/?exchange=x#y", "%23"),
        ("amqp://mq/?exchange=x&ke=y", "unknown option 'ke'"),
        ("amqp://mq/?exchange=" + "x" * 128, "up to 127 of"),
        ("amqp://mq/?exchange=caf%C3%A9", "exchange='café' must be"),
        ("amqp://mq/?key=" + "x" * 256, "255 bytes"),
        ("amqp://mq/?exchange=x&cafile=a.pem", "amqps://"),
        ("amqp://mq/?exchange=x&heartbeat=0", "1 to 600 seconds"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_the_reason(url: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        parse(url)


def test_no_text_of_an_address_has_the_password_in_it() -> None:
    url = "amqp://app:s3cret@mq/shop?exchange=orders"
    assert "s3cret" not in f"{parse(url)} {parse(url)!r}"
    with pytest.raises(InvalidArgument) as caught:
        parse(url + "&oops=1")
    assert "s3cret" not in str(caught.value)
