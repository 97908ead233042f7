%(complete_func)s() {
    local IFS=$'\n' item
    COMPREPLY=()
    for item in $(env COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" %(complete_var)s=bash_complete $1); do
        case ${item%%%%,*} in
            dir) compopt -o dirnames;;
            file) compopt -o default;;
            *) item=${item#*,}; COMPREPLY+=("$item"); [[ $item == *= ]] && compopt -o nospace;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
