"""Settings of several hosts that serve one model together."""

from __future__ import annotations

from pydantic import BaseModel, Field

from service.config import NodeConfig


class HostSettings(BaseModel):
    """One of the groups that `Settings` is made of."""

    nnodes: int = Field(1, ge=1, le=64, description="number of hosts; the stages are divided among them in order")
    node_rank: int = Field(
        0, ge=0, description="number of this host; 0 is the head, which serves HTTP, the others only compute"
    )
    master_addr: str = Field(
        "127.0.0.1", min_length=1, description="address on which the head listens for the other hosts"
    )
    master_port: int = Field(29501, ge=1, le=65535, description="port on which the head listens for the other hosts")
    node_secret: str | None = Field(
        None, min_length=16, description="secret of at least 16 characters, the same on all hosts"
    )

    def node_config(self) -> NodeConfig | None:
        """None: this host serves alone."""
        if self.nnodes == 1:
            return None
        assert self.node_secret is not None  # checked with the settings
        return NodeConfig(self.nnodes, self.node_rank, self.master_addr, self.master_port, self.node_secret)
