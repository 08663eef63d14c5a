"""Teams along the dimensions of a DeviceMesh."""
from typing import TYPE_CHECKING, Any

from verbena.team import SymmetricTeam

if TYPE_CHECKING:
    from verbena.context import SymmetricContext


def create_mesh_teams(context: "SymmetricContext", mesh: Any) -> dict[str, SymmetricTeam]:
    """Creates a team for each dimension of a PyTorch DeviceMesh. Collective over the context, which must have the same ranks as the
    mesh's default process group.

    Returns a dictionary that maps the name of each dimension (or its index, if it has no name) to this rank's team along the dimension. The
    team contains the ranks whose mesh coordinates equal this rank's coordinates in all other dimensions. Ranks outside the mesh get an
    empty dictionary."""
    place = mesh.get_coordinate()
    names = mesh.mesh_dim_names or [str(number) for number in range(len(mesh.shape))]
    teams = {}
    for dimension, name in enumerate(names):
        color = -1 if place is None else _number_line(mesh.shape, place, dimension)
        team = context.split(context.world, color, 0 if place is None else place[dimension])
        if team is not None:
            teams[name] = team
    return teams


def _number_line(shape: Any, place: Any, dimension: int) -> int:
    """All ranks that differ only in their coordinate along `dimension` form a line. Returns the index of the line that contains the
    coordinates `place`."""
    number = 0
    for other, length in enumerate(shape):
        if other != dimension:
            number = number * length + place[other]
    return number
