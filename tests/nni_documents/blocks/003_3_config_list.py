[{
    'sparsity':0.8,
    'support_layer':'default'
    'support_op':['op_name1','op_name2']
}]
