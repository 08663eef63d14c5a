"""Teams along the dimensions of a DeviceMesh."""
from typing import TYPE_CHECKING, Any

from verbena.team import SymmetricTeam

if TYPE_CHECKING:
    from verbena.context import SymmetricContext


def create_mesh_teams(context: "SymmetricContext", mesh: Any) -> dict[str, SymmetricTeam]:
    """Creates a team for each dimension of a torch DeviceMesh. Returns them by the dimension's name, or by its number if it
    has none: this rank's team of the ranks that differ from it in that coordinate alone. Ranks outside the mesh get
    none.

    Collective among all ranks of the context, which are those of the mesh's default process group."""
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
    """Of the lines along the dimension, this place's."""
    number = 0
    for other, length in enumerate(shape):
        if other != dimension:
            number = number * length + place[other]
    return number
