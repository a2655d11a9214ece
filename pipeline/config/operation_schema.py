"""Sections of the configuration for scheduled updates: gates, publishing, retries, notification.

None of them changes a number of a map; `gates.pixel_coverage` has the evaluation simulate more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo
from pydantic import model_validator as _model_validator

from pipeline.config.base import Section, config_error
from pipeline.config.values import check_dollar
from pipeline.storage.location import CONDITIONS, is_object_address


def _local(value: Any) -> Any:
    if isinstance(value, str) and "://" in value:
        raise config_error(
            found=f"{value} is not a local directory",
            remedy="give a local one",
        )
    return value


def _beside(path: Path, info: ValidationInfo) -> Path:
    check_dollar(str(path))
    base = (info.context or {}).get("base", Path())
    return (Path(base) / path.expanduser()).resolve()


def _published(value: Any, info: ValidationInfo) -> Any:
    """Return a local directory as an absolute path, an address as it is."""
    if isinstance(value, str) and "://" in value:
        if not (is_object_address(value) and value.startswith("s3")):
            raise config_error(
                found=f"{value} takes no conditional writes that disagg knows of",
                remedy=CONDITIONS,
            )
        check_dollar(value)
        return value.rstrip("/")
    return _beside(Path(value), info) if isinstance(value, str | Path) else value


Directory = Annotated[Path, BeforeValidator(_local), AfterValidator(_beside)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Amount = Annotated[float, Field(strict=True, ge=0)]
Delay = Annotated[Amount, Field(json_schema_extra={"unit": "s"})]
Count = Annotated[int, Field(strict=True, ge=0)]


class Gates(Section):
    """``gates``: conditions for publishing.

    By default, the map beats one rate for the whole country, and most areas have a count.

    Scores are those of held-out areas (``evaluation.json``).
    """

    better_than_constant: bool | tuple[Literal["area", "block"], ...] = Field(
        True,
        examples=[["area"]],
        description="the map must predict held-out areas better than one rate for the whole "
        "country: true, by every scheme of evaluate.schemes; [area], [block] or both, by these; "
        "false, not asked. By area the answer must be yes; by region it must not be no, and yes "
        "where most areas have no count or regions alone are asked about",
    )
    converged: bool = Field(False, description="the fit must have converged")
    scheme: Literal["area", "block"] = Field(
        "area", description="areas held out at random, or in spatial blocks"
    )
    min_gain: Annotated[float, Field(strict=True)] | None = Field(
        None,
        json_schema_extra={"unit": "nats per area"},
        examples=[0.05],
        description="minimum gain of the held-out score over a constant rate, nats an area",
    )
    min_correlation: Annotated[float, Field(strict=True, ge=-1, le=1)] | None = Field(
        None,
        examples=[0.5],
        description="minimum correlation of held-out rates with observed ones; of labels: AUC",
    )
    coverage: tuple[Share, Share] | None = Field(
        None,
        examples=[[0.8, 0.97]],
        description="[least, largest] share of held-out counts inside output.interval",
    )
    pixel_coverage: tuple[Share, Share] | None = Field(
        None,
        examples=[[0.8, 0.99]],
        description="[least, largest] share of the true rates of pixels inside output.interval, by "
        "pixel and by people: in refits to simulated data (evaluate.calibration) and, where "
        "`truth` is given, in truth",
    )
    max_log_loss: Amount | None = Field(
        None,
        json_schema_extra={"unit": "nats"},
        examples=[0.6],
        description="of labels: maximum log loss of held-out areas, nats",
    )
    max_calibration_error: Share | None = Field(
        None,
        examples=[0.1],
        description="of labels: maximum difference of the share of positive held-out areas and "
        "their predicted probability, on average over ten bins",
    )
    min_counted: Share = Field(
        0.8,
        description="minimum share of areas with a count (or label): a period may be incomplete",
    )
    max_change: Amount | None = Field(
        None,
        examples=[0.2],
        description="maximum change from the published map: mean absolute log ratio of the pixels' "
        "rates (0.1: about 10 %), or mean absolute difference of probabilities",
    )

    @_model_validator(mode="after")
    def _in_order(self) -> Self:
        for name in ("coverage", "pixel_coverage"):
            limits = getattr(self, name)
            if limits is not None and limits[0] > limits[1]:
                raise config_error(
                    found=f"{name} has the larger share first", remedy="give [least, largest]"
                )
        return self


class Publish(Section):
    """``publish``: where versions of the map are stored."""

    dir: Annotated[Path | str | None, BeforeValidator(_published)] = Field(
        None,
        examples=["/srv/maps"],
        description="directory of the versions, or their address (s3://bucket/published); "
        "published in output.dir by default",
    )
    keep: Annotated[int, Field(strict=True, ge=2)] = Field(
        24, description="number of versions to keep; the current one always stays"
    )
    url: str | None = Field(
        None,
        examples=["https://maps.example.org/malaria"],
        description="web address of the directory, for links",
    )
    compare: Annotated[bool, Field(strict=True)] | Literal["auto"] = Field(
        "auto",
        examples=[True],
        description="whether a version keeps its comparison with the last one: true, from draws; "
        "auto, from draws where that is cheap, else from means and standard deviations; false, "
        "none",
    )


class Update(Section):
    """``update``: waiting, retries and time-outs of a scheduled run; new fits of a series."""

    refit: Literal["proposed", "always"] = Field(
        "proposed",
        description="of maps of several periods, when a scheduled run fits anew: where an update "
        "proposes it or cannot take in what has changed; or for whatever is new",
    )
    when_busy: Literal["queue", "skip"] = Field(
        "queue", description="if another run updates the map: wait for it, or do nothing"
    )
    retries: Count = Field(3, description="number of retries after a transient error")
    retry_delay_s: Delay = Field(30.0, description="seconds before a retry; doubles")
    timeout_s: Annotated[float, Field(strict=True, gt=0)] = Field(
        86400.0,
        json_schema_extra={"unit": "s"},
        description="maximum seconds of a stage; its checkpoint is kept",
    )
    settle_s: Delay = Field(
        10.0,
        description="seconds without a change after which a new file is complete",
    )
    doubt_s: Delay = Field(
        3600.0,
        description="the same for new counts that look cut off: few rows, a short last line",
    )


class Email(Section):
    """``notify.email``: mail server and addresses."""

    to: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        examples=[["duty@example.org"]], description="addresses"
    )
    sender: str = Field(examples=["maps@example.org"], description="address of the sender")
    host: str = Field("localhost", description="mail server")
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] | None = Field(
        None, examples=[587], description="its port; by default 465 with encryption: tls, else 25"
    )
    encryption: Literal["starttls", "tls", "none"] = Field(
        "starttls",
        description="STARTTLS, TLS from the start, or none; the server's certificate is checked",
    )
    starttls: bool | None = Field(
        None,
        examples=[True],
        description="former name of encryption: true is starttls, false is none",
    )
    user: str | None = Field(None, examples=["maps"], description="user name of the mail server")
    password: SecretStr | None = Field(
        None, examples=["${SMTP_PASSWORD}"], description="its password: ${NAME} of the environment"
    )

    @_model_validator(mode="before")
    @classmethod
    def _former_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("starttls"), bool):
            return {"encryption": "starttls" if data["starttls"] else "none", **data}
        return data

    @_model_validator(mode="after")
    def _password_is_encrypted(self) -> Self:
        if self.password is not None and self.encryption == "none":
            raise config_error(
                found="a password with encryption: none, which anybody on the way can read",
                remedy="give encryption: starttls or tls, or no password",
            )
        return self

    @property
    def server_port(self) -> int:
        """Port of the mail server."""
        return self.port or (465 if self.encryption == "tls" else 25)


class Notify(Section):
    """``notify``: recipients and events of notifications."""

    on: tuple[Literal["failure", "late", "gate"], ...] = Field(
        ("failure", "late", "gate"), description="events: a failed run, a late run, a failed gate"
    )
    webhook: SecretStr | None = Field(
        None,
        examples=["${WEBHOOK_URL}"],
        description="URL that receives a JSON object by POST; `text` is the message",
    )
    email: Email | None = Field(None, description="mail server and addresses")


class Metrics(Section):
    """``metrics``: metrics of runs for Prometheus."""

    textfile: Directory | None = Field(
        None,
        examples=["/var/lib/node_exporter/textfile"],
        description="directory of node_exporter's textfile collector",
    )
    pushgateway: str | None = Field(
        None, examples=["push.example.org:9091"], description="address of a push gateway: host:9091"
    )
