"""Sections of the configuration for maps that are updated again and again, unattended.

None of them changes a number of a map: they say when it is fit to be published, where to, how a
run behaves when something is in its way, and who is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo
from pydantic import model_validator as _model_validator

from pipeline.config.base import Section, config_error
from pipeline.config.values import check_dollar


def _local(value: Any) -> Any:
    if isinstance(value, str) and "://" in value:
        raise config_error(
            found=f"{value} is no local directory",
            remedy="give one: versions are swapped by a rename",
        )
    return value


def _beside(path: Path, info: ValidationInfo) -> Path:
    check_dollar(str(path))
    base = (info.context or {}).get("base", Path())
    return (Path(base) / path.expanduser()).resolve()


Directory = Annotated[Path, BeforeValidator(_local), AfterValidator(_beside)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Amount = Annotated[float, Field(strict=True, ge=0)]
Count = Annotated[int, Field(strict=True, ge=0)]


class Gates(Section):
    """``gates``: what a finished run must fulfil to be published; what is not given is not asked.

    Scores are those of areas that the model did not see (``evaluation.json``).
    """

    converged: bool = Field(False, description="the fit must have converged")
    scheme: Literal["area", "block"] = Field(
        "area", description="areas held out at random, or in spatial blocks"
    )
    min_gain: Annotated[float, Field(strict=True)] | None = Field(
        None, description="nats an area by which held-out areas are predicted better than by a "
        "constant, at least",
    )  # fmt: skip
    min_correlation: Annotated[float, Field(strict=True, ge=-1, le=1)] | None = Field(
        None, description="of held-out rates with what was observed, at least; of labels: the AUC"
    )
    coverage: tuple[Share, Share] | None = Field(
        None, description="least and largest share of held-out counts inside output.interval"
    )
    max_change: Amount | None = Field(
        None, description="from the published map, at most: mean over the pixels of the absolute "
        "log ratio of rates (0.1: about 10 %), or of the difference of probabilities",
    )  # fmt: skip

    @_model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.coverage is not None and self.coverage[0] > self.coverage[1]:
            raise config_error(
                found="coverage has the larger share first", remedy="give [least, largest]"
            )
        return self


class Publish(Section):
    """``publish``: where finished maps go, version by version."""

    dir: Directory | None = Field(
        None, description="local directory of the versions; published in output.dir by default"
    )
    keep: Annotated[int, Field(strict=True, ge=2)] = Field(
        24, description="versions that are kept; the current one always is"
    )
    url: str | None = Field(None, description="where readers find the directory, for links")


class Update(Section):
    """``update``: how an unattended run behaves."""

    when_busy: Literal["queue", "skip"] = Field(
        "queue", description="while another run updates the map: wait for it, or do nothing"
    )
    retries: Count = Field(3, description="of what fails for a reason that may pass")
    retry_delay_s: Amount = Field(30.0, description="before the first; then twice as long each")
    timeout_s: Annotated[float, Field(strict=True, gt=0)] = Field(
        86400.0, description="seconds that a stage may take; its checkpoint stays"
    )
    settle_s: Amount = Field(
        10.0, description="seconds for which a new file must not have grown to be taken for whole"
    )


class Email(Section):
    """``notify.email``: a mail server and who gets the mail."""

    to: Annotated[tuple[str, ...], Field(min_length=1)] = Field(description="addresses")
    sender: str = Field(description="address of the sender")
    host: str = Field("localhost", description="mail server")
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] = Field(25, description="its port")
    starttls: bool = Field(False, description="encrypt, by STARTTLS")
    user: str | None = Field(None, description="name to log in by")
    password: SecretStr | None = Field(None, description="give it as ${NAME} of the environment")


class Notify(Section):
    """``notify``: who is told, and of what."""

    on: tuple[Literal["failure", "late", "gate"], ...] = Field(
        ("failure", "late", "gate"), description="runs that failed, are late, or were held back"
    )
    webhook: SecretStr | None = Field(
        None, description="URL that gets a JSON object by POST, its `text` the message"
    )
    email: Email | None = Field(None, description="mail server and addresses")


class Metrics(Section):
    """``metrics``: figures of runs for Prometheus."""

    textfile: Directory | None = Field(
        None, description="directory that node_exporter's textfile collector reads"
    )
    pushgateway: str | None = Field(None, description="address of a push gateway: host:9091")
